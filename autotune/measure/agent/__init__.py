"""One machine of a study that runs elsewhere: `python -m autotune.agent`, once on each node.

The lease works both ways:

- An agent that hears nothing for 6 s kills its ranks and leaves.
- Ranks notice a lost host by TCP's own probes. So the ranks of a frozen agent end when the study
  hangs up.
- A guard outlives the agent. It kills a stopped agent, and removes its temporary files.
"""
