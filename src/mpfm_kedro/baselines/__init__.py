"""Rivals and references behind one interface, on the features of one frozen backbone."""
