"""What every room needs: facts and their gaps, findings, records, parameters, redaction, GPU identity."""
