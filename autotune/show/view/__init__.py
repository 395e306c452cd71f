"""A study's folder, shown: as a page, as pictures, as a table, beside other studies.

All of it is made from `manifest.json`, `trials.csv`, `best.json` and `logs/`, and from the end of
the study as the journal has it. The same code shows a study while it runs, at its end, and years
later.

Templates escape everything from outside. The policy of the page itself allows the two scripts in
it alone, and no requests. The live page listens on loopback, and has nothing to write with.
"""
