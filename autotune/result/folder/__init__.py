"""The files of a study, and how they are read back.

Contracts:

- **Optuna's study is the record of record**, in the folder's journal or in a database. A told
  trial is on the disk before the study goes on (`Storage.together`: one append, or one
  transaction). So only the end of a journal can be torn.
- **Only `outcome` is read back of a trial's attributes.** The flat ones are for people. An outcome
  is written before the trial's state: a trial with an outcome counts, even if it is RUNNING. A
  RUNNING trial without one is told as FAIL, and its candidate is open again.
- **`trials.csv` and `best.json` are made from the record.** A resumed study writes them anew.
- **Processes of one study ask one after another.** Each asks in one transaction, under a lock of
  the study. It reads the news of others, has its sampler propose, and inserts the RUNNING trial
  with its `owner`. It claims finals in the same way. It ends only trials of its own folder's last
  process, and of dead processes.
- **Writers of a SQLite file queue.** They lock the file's folder until they have SQLite's own lock
  (`databases._turn`). This is only for fairness: SQLite keeps the file whole.
- **A write whose answer got lost may have happened.** Each write to a database looks first
  (`Journal._write`). A trial has a number of its process, and nothing is told twice.
- **No password is in a URL.** The manifest, argv and messages name the storage.
- **A resume needs only the folder.** The manifest has the options as JSON, and the checks of the
  command line read them. No other place, such as `pyproject.toml`, adds to them.
- **A resumed study keeps its limits.** Its verdicts depend on them.
- **Optuna sees constraints on every trial**, so its samplers learn which candidates do not fit.
"""
