"""Reports: tables, figures and pages for people."""
