"""One study: search, finals, and what is known so far.

Contracts:

- **One thread asks, tells and writes.** Ledger, predictions, journal and the learned starts
  (`Pace`) belong to the thread that runs the study. A slot's thread runs `Prober.measure` and
  nothing else. It may call the reporter's `phase` and `note`, and append to `Journal.lost`.
- **A trial that was put off says nothing of its candidate.** A runner that lost a node sets
  `Result.put_off`. A runner without any node sets `Result.gone`, or raises `NoNodesError` before
  it ran anything. The candidate is open again. One that lost nodes twice comes last: it may have
  been the cause.
- **A skip for memory needs a witness.** A candidate is skipped only if another one did not fit
  that has no more depth, length or micro-batch, and the same value on every other axis. The trial
  names it. Predictions never skip.
- **An unsupported trial names its axes.** A rank that knows which values do not go together says
  so (`UnsupportedError`). Every candidate with these values is then settled. If the rank cannot
  say, the axes are stage and offload, which an engine lacks whatever the model, and all other
  axes that are not plain.
- **Memory of others disturbs a probe.** A change of more than 1 % of the capacity after the first
  steps is not the rank's. The probe runs again in a fresh group. So does one that ran out of
  device memory within its own limit, if others had taken more than that share. Until the end of
  the warm-up 1 GiB more is the rank's own, for the first use of libraries; 2 among several ranks.
- **A resumed study begins with the interrupted round**, so it tries the candidates that it would
  have tried. A candidate in which the study itself died twice comes last.
"""
