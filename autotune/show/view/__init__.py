"""A study's folder as a page, as pictures, as a table, or beside other studies.

All of it is made from `manifest.json`, `trials.csv`, `best.json` and `logs/`, and from the study's
end in the journal. The same code shows a study while it runs, at its end, and years later.

Templates escape everything from outside. The policy of the page only allows its own two scripts,
and no requests. The live page listens on loopback, and cannot write.
"""
