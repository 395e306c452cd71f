"""A training script of the user's own, launched as it is, once for each probe.

Contracts:

- **A script is not changed, and not believed.** The study writes none of its files, and reads
  nothing of its output. Its processes show what it ran: batches in autograd's graph, backward
  passes, the process group. A launch counts only if it ran what was asked for, or if nothing shows
  what it ran. The result then says so.
- **No process of a launch is left.** All of them stay below the supervisor
  (`probes/supervise.py`), which ends with its stdin. If the supervisor itself is killed, the
  study looks for the launch's address in the environments of all processes.
- **The temporary folder of a launch has a short path**, beside other temporary folders. Loaders
  open sockets there, and a path inside the study folder may be too long. It goes with the
  launch. `{out}` is in the study folder, and goes too.
- **Compiled code outlives a launch.** It stays beside the logs (`compiled.tmp`) until the study
  ends, for the next launches.
"""
