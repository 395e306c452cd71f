"""What a study hands on: best.json, rows of trials.csv, and one pure module per format."""
