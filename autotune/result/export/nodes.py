"""Lines of shell that start ranks. With several nodes, each of them runs these lines."""

from __future__ import annotations

from autotune.result.best import Config

_CHECKED = """\
node=${{NODE_RANK:-${{SLURM_NODEID:-}}}}
if [ -z "$node" ]; then
  echo "NODE_RANK is not set: 0 on the first of {nodes} nodes, then up to {last}" >&2; exit 2
elif [ -z "${{MASTER_ADDR:-}}" ]; then
  echo "MASTER_ADDR is not set: name the first node, or its address" >&2; exit 2
fi
"""


def checked(config: Config) -> str:
    """Sets `node`, and stops without its rank or the first node's address. Empty for one node."""
    if config.nodes == 1:
        return ""
    return _CHECKED.format(nodes=config.nodes, last=config.nodes - 1)


def torchrun(config: Config) -> str:
    """The command, after `checked` with several nodes. The first ones may have one more rank."""
    if config.nodes == 1:
        return f"torchrun --standalone --nproc-per-node={config.world_size}"
    least, more = divmod(config.world_size, config.nodes)
    ranks = f'"$(({least} + (node < {more})))"' if more else str(least)
    return (
        f'torchrun --nnodes={config.nodes} --nproc-per-node={ranks} --node-rank="$node"'
        ' --master-addr="$MASTER_ADDR" --master-port="${MASTER_PORT:-29500}"'
    )
