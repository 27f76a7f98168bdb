"""Inspection: from scores and position maps to decisions and pictures of where a defect is."""
