"""What scores are worth: measures, intervals, ranks, false alarms, pixel measures and the published results."""
