"""What a study writes, and how it is read back.

Contracts:

- **Optuna's study is the record of record**, in the folder's journal or in a database. A told
  trial is on the disk before the study goes on (`Storage.together`: one append, or one
  transaction). So only the end of a journal can be torn.
- **Of a trial's attributes only `outcome` is read back.** The flat ones are for people. An outcome
  is written before the trial's state: a trial with an outcome counts, even if it is RUNNING. A
  RUNNING trial without one is told as FAIL, and its candidate is open again.
- **`trials.csv` and `best.json` are made from the record.** A resumed study writes them anew.
- **Processes of one study ask one after another.** In one transaction, under a lock of the study,
  a process reads the news of others, has its sampler propose, and inserts the RUNNING trial with
  its `owner`. It claims finals in the same way. It ends only trials of its own folder's last
  process, and of dead processes.
- **Writers of a SQLite file queue.** SQLite has no queue, so they lock the file's folder until
  they have its lock (`databases._turn`). This is for fairness alone: SQLite keeps the file whole.
- **A write whose answer got lost may have happened.** Each write to a database looks first
  (`Journal._write`). A trial has a number of its process, and nothing is told twice.
- **No password is in a URL.** The manifest, argv and messages name the storage.
- **A resume needs the folder alone.** The manifest has the options as JSON, and the checks of the
  command line read them. No other place, such as `pyproject.toml`, adds to them.
- **Limits are the study's.** A resumed study keeps them: its verdicts stand on them.
- **Optuna sees constraints on every trial**, so its samplers learn which candidates do not fit.
"""
