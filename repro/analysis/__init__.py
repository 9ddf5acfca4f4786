"""From frozen runs and their metrics to gaps, verdicts, tables and drawings. Reads files only: no torch."""
