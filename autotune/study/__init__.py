"""One study: search, finals, and what is known so far.

Contracts:

- **One thread asks, tells and writes.** The study's thread owns ledger, predictions, journal and
  learned starts (`Pace`). A slot's thread only runs `Prober.measure`. It may call the reporter's
  `phase` and `note`, and append to `Journal.lost`.
- **A trial that was put off says nothing of its candidate.** A runner that lost a node sets
  `Result.put_off`. A runner without any node sets `Result.gone`, or raises `NoNodesError` before
  it ran anything. The candidate is open again. One that lost nodes twice comes last: it may have
  been the cause.
- **A skip for memory needs a witness.** The witness did not fit. It has no more depth, length or
  micro-batch than the skipped candidate, and the same value on every other axis. The trial names
  it. Predictions never skip.
- **An unsupported trial names its axes.** A rank that knows which values do not go together says
  so (`UnsupportedError`). Every candidate with these values is then settled. If the rank cannot
  say, the study takes stage, offload and all axes that are not plain.
- **Memory of others disturbs a probe.** It does if it changes by more than 1 % of the capacity
  after the first steps. The probe runs again in a fresh group. So does a probe that ran out within
  its own limit, if others took more than that share. During warm-up the rank itself may take 1 GiB
  more, for the first use of libraries; 2 GiB among several ranks.
- **A resumed study begins with the interrupted round**, so it tries the candidates that it would
  have tried. A candidate in which the study itself died twice comes last.
"""
