"""A script that starts a training run with the ranks and environment of its probes."""

from __future__ import annotations

import re
import shlex
from shlex import quote

import jinja2

from autotune.result.best import Best, Config
from autotune.result.export.env import thread_lines
from autotune.result.export.format import FACTS, Exported, exported, machines

_OWN = """\
#!/usr/bin/env bash
# Usage: launch.sh [MORE ARGUMENTS...]
set -euo pipefail
{{ folder }}{{ exports }}exec {{ command }} "$@"
"""
_SCRIPT = """\
#!/usr/bin/env bash
# Usage: launch.sh train.py [ARGUMENTS...]; LAUNCHER=torchrun, deepspeed or accelerate.
{% if several %}
# Run it on each of {{ config.nodes }} nodes, with NODE_RANK (Slurm sets it) and MASTER_ADDR.
# With deepspeed run it on one node, with HOSTFILE.
{% endif %}
set -euo pipefail
[ $# -gt 0 ] || { echo "name your script: $0 train.py" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
{{ exports }}
{%- if several %}
if [ "${LAUNCHER:-torchrun}" = deepspeed ]; then
  if [ ! -f "${HOSTFILE:-}" ]; then
    echo "HOSTFILE names no file: write a line such as 'node1 slots={{ ranks }}' for each node" >&2
    exit 2
  fi
{% if variables %}
  export DS_ENV_FILE="$here/{{ env_file }}"
{% endif %}
else
{{ checked | indent(2, first=true) }}
{%- if not machines %}
  if [ "${LAUNCHER:-torchrun}" = accelerate ]; then
    echo "accelerate cannot share {{ config.world_size }} ranks among {{ config.nodes }} nodes:\
 LAUNCHER=torchrun" >&2; exit 2
  fi
{% endif %}
fi
{% endif %}
case "${LAUNCHER:-torchrun}" in
  torchrun) exec {{ torchrun }} "$@" ;;
  deepspeed) exec deepspeed {{ deepspeed }} "$@" ;;
  accelerate)
    if [ ! -f "$here/accelerate.yaml" ]; then
      echo "$here/accelerate.yaml is not there: autotune export --format accelerate" >&2; exit 2
    fi
    exec accelerate launch --config_file "$here/accelerate.yaml"{{ accelerate }}{% if several %} \\
      --machine_rank "$node" --main_process_ip "$MASTER_ADDR" \\
      --main_process_port "${MASTER_PORT:-29500}"{% endif %} "$@" ;;
  *) echo "LAUNCHER is torchrun, deepspeed or accelerate" >&2; exit 2 ;;
esac
"""
_CHECKED = """\
node=${{NODE_RANK:-${{SLURM_NODEID:-}}}}
if [ -z "$node" ]; then
  echo "NODE_RANK is not set: 0 on the first of {nodes} nodes, then up to {last}" >&2; exit 2
elif [ -z "${{MASTER_ADDR:-}}" ]; then
  echo "MASTER_ADDR is not set: name the first node, or its address" >&2; exit 2
fi
"""
_ACCELERATE = ' --deepspeed_config_file "$here/accelerate-deepspeed.json"'
_ENV_FILE = "launch-deepspeed.env"
"""Variables that DeepSpeed's launcher sets on each node. It passes on few others."""


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


def _positions(best: Best, ranks: int) -> str:
    """The devices of the measurement: 2 and 3 for "cuda:2,3", else the first ones."""
    named = re.fullmatch(r"cuda:(\d+(?:,\d+)*)", str(best.asked.get("device", "")))
    positions = named[1].split(",") if named else [str(i) for i in range(ranks)]
    return ",".join(positions[:ranks])


def export(best: Best) -> Exported:
    """`launch.sh`. It starts the tuned script. For a built-in model it starts a script of yours,
    which reads its settings from another export."""
    config = best.config
    ranks, on_cpu, several = config.ranks_on_a_node, best.device_kind == "cpu", config.nodes > 1
    variables = dict(best.exports.get("env", {}))
    if on_cpu:
        variables |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    lines = [f"export {name}={quote(value)}\n" for name, value in variables.items()]
    lines.append(thread_lines(best))
    if not on_cpu:
        devices = _positions(best, ranks)
        lines.append(f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-{devices}}}"\n')
    if best.command is not None:
        text = _filled(
            _OWN,
            folder=f"cd {quote(best.started_in)}\n" if best.started_in else "",
            exports="".join(lines),
            command=shlex.join(best.command),
        )
        return exported(best, (*FACTS, "lora", "own"), {"launch.sh": text})
    text = _filled(
        _SCRIPT,
        config=config, ranks=ranks, several=several, machines=machines(config),
        variables=variables, exports="".join(lines), env_file=_ENV_FILE,
        checked=checked(config), torchrun=torchrun(config),
        deepspeed=_deepspeed(config, on_cpu=on_cpu),
        accelerate=_ACCELERATE if config.engine == "deepspeed" else "",
    )  # fmt: skip
    files = {"launch.sh": text}
    if several and variables:
        files[_ENV_FILE] = "".join(f"{name}={value}\n" for name, value in variables.items())
    return exported(best, ("world_size", "nodes", "allocator"), files)


def _filled(template: str, **values: object) -> str:
    shell = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    return shell.from_string(template).render(values)


def _deepspeed(config: Config, *, on_cpu: bool) -> str:
    ranks = config.ranks_on_a_node
    if config.nodes > 1:
        each = f" --num_gpus={ranks}" if machines(config) else ""  # else the file's slots
        return f'--hostfile "$HOSTFILE" --num_nodes={config.nodes}{each}'
    # With --num_gpus the launcher ignores CUDA_VISIBLE_DEVICES.
    return (
        f"--num_accelerators={ranks}" if on_cpu else '--include "localhost:$CUDA_VISIBLE_DEVICES"'
    )
