# Sourced by the scripts beside it. Sets $repo, $venv_python and $cuda_python, and defines ensure_venv.
# shellcheck shell=bash

repo=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
venv_python=$repo/.venv/bin/python
cuda_python=$repo/.venv-cuda/bin/python
# The wheels of scripts/constraints.txt's torch may be without CUDA; PyPI's of this version are built for it.
cuda_torch=2.14.1

# ensure_venv EXTRA: .venv holds the package and, where EXTRA is "dev", what its tests need.
# Installs only when pyproject.toml, the constraints or the place of the repository have changed.
ensure_venv() {
    local extra=$1 wanted
    wanted=$(_wanted)
    if [ -x "$venv_python" ]; then
        if _stamped .venv dev "$wanted" || _stamped .venv "${extra:-base}" "$wanted"; then
            return
        fi
    else
        _create_venv .venv
    fi
    echo "autotune: installing torch, DeepSpeed and the rest into $repo/.venv (minutes, once)" >&2
    "$venv_python" -m pip install -qq --no-compile -c "$repo/scripts/constraints.txt" \
        -e "$repo${extra:+[$extra]}" || _fail "the installation failed; see above"
    # Compiles what tests import as they are collected, once: else each of their workers would.
    [ "$extra" != dev ] || (cd "$repo" && "$venv_python" -m pytest --collect-only -qq) >/dev/null 2>&1 || true
    rm -f "$repo"/.venv/autotune-*.stamp
    echo "$wanted" >"$repo/.venv/autotune-${extra:-base}.stamp"
}

# ensure_cuda: .venv-cuda holds the package with torch's CUDA build, and what tests on emulated cards need. Where it cannot
# be made, one line tells why, and the function fails.
ensure_cuda() {
    local wanted lack="" free_kb
    wanted=$(_wanted "$cuda_torch" "${cuda_tests[@]}")
    free_kb=$(df --output=avail "$repo" 2>/dev/null | tail -1)
    if [ "$(uname -sm)" != "Linux x86_64" ]; then
        lack="torch's CUDA build is taken for Linux on x86_64, and this is $(uname -sm)"
    elif ! command -v "${CC:-cc}" >/dev/null; then
        lack="there is no C compiler (apt-get install gcc)"
    elif [ -x "$cuda_python" ] && _stamped .venv-cuda cuda "$wanted"; then
        return
    elif [ "${free_kb:-0}" -lt 15000000 ]; then
        lack="torch's CUDA build needs 15 GB in $repo, of which $((${free_kb:-0} / 1000000)) are free"
    else
        echo "autotune: installing torch's CUDA build into $repo/.venv-cuda (minutes, once)" >&2
        { [ -x "$cuda_python" ] || (_create_venv .venv-cuda); } && "$cuda_python" -m pip install -qq --no-compile \
            --retries 1 --timeout 15 -c <(grep -v "^torch==" "$repo/scripts/constraints.txt") \
            -e "$repo" "torch==$cuda_torch" "${cuda_tests[@]}" >&2 || lack="the installation failed; see above"
    fi
    if [ -n "$lack" ]; then
        echo "autotune: the tests on emulated cards are left out: $lack" >&2
        return 1
    fi
    echo "$wanted" >"$repo/.venv-cuda/autotune-cuda.stamp"
}
cuda_tests=(bitsandbytes datasets hypothesis jsonschema lightning peft pytest pytest-timeout pytest-xdist tensorboard
    torchao)

# ensure_parsers: .parsers/TOOL has a tool's code that reads its configuration, for the tests of exports. Its gigabytes
# of libraries are not installed. If a tool cannot be installed, its test is skipped. Tests on emulated cards also train
# with torchtitan and Megatron.
ensure_parsers() {
    _parser axolotl axolotl==0.19.0 addict==2.4.0 colorama==0.4.6 pillow==13.0.0
    _parser llama-factory llamafactory==0.9.5 omegaconf==2.4.0
    _parser ms-swift ms-swift==4.6.0 addict==2.4.0 json_repair==0.64.6 modelscope==1.40.2 modelscope_hub==0.5.1 \
        transformers==5.19.0
    _parser torchtitan torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing==0.1.1 torchdata==0.11.0 \
        tyro==1.0.17 typeguard==4.6.0
    # Its wheels are for Python 3.12 and newer; their compiled parts are not needed.
    _parser megatron --python-version 3.12 --ignore-requires-python megatron-core==0.19.2
}

# ensure_browser: Chromium, for the tests of the page. Where it cannot be installed they are skipped.
ensure_browser() {
    if ! { command -v chromium && command -v chromedriver; } >/dev/null && ! _debian chromium chromium-driver; then
        echo "autotune: no browser (apt-get install chromium chromium-driver); the tests of the page are skipped" >&2
    fi
}

# ensure_postgres: PostgreSQL's programs, for the tests of studies in a database, which start servers of their own in
# temporary folders: no other is made. Where they cannot be installed the tests are skipped.
ensure_postgres() {
    if command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; then
        return
    fi
    _debian postgresql-common &&
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf &&
        _debian postgresql ||
        echo "autotune: no PostgreSQL (apt-get install postgresql); the tests of its studies are skipped" >&2
}

# ensure_engines: programs that start agents on several machines, for the tests of launchers. If they cannot be
# installed, the tests are skipped. Ray comes with the extra "dev".
ensure_engines() {
    local packages=(iproute2 openssh-client openssh-server slurmctld slurmd slurm-client munge) program
    for program in ip ssh sshd slurmctld slurmd srun munged; do
        if ! command -v "$program" >/dev/null; then
            _debian "${packages[@]}" ||
                echo "autotune: no $program (apt-get install ${packages[*]}); the tests of launchers are skipped" >&2
            return
        fi
    done
}

# Installs packages of Debian, and starts no service of theirs.
_debian() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
        { apt-get update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes \
            --no-install-recommends "$@"; } >/dev/null 2>&1
}

_parser() {
    local tool=$1 into=$repo/.parsers/$1
    shift
    if [ "$(cat "$into/installed" 2>/dev/null)" = "$*" ]; then
        return
    fi
    rm -rf "$into"
    if "$venv_python" -m pip install -qq --disable-pip-version-check --no-deps --only-binary :all: \
        --retries 1 --timeout 15 --target "$into" "$@"; then
        echo "$*" >"$into/installed"
    else
        rm -rf "$into"
        echo "autotune: cannot install $tool; the test that it reads its export is skipped" >&2
    fi
}

# A digest of an environment's sources, and of the given words.
_wanted() {
    echo "$repo" "$@" | cat - "$repo/pyproject.toml" "$repo/scripts/constraints.txt" | cksum
}

_stamped() {
    [ "$(cat "$repo/$1/autotune-$2.stamp" 2>/dev/null)" = "$3" ]
}

_create_venv() {
    local python=${PYTHON:-python3} version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        _fail "$python does not run; set PYTHON=/path/to/python3.11 or newer"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        _fail "$python is $version, at least 3.11 is needed; set PYTHON=/path/to/python3.11"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        _fail "$python has no venv; install python$version-venv or set PYTHON to one that has it"
    "$python" -m venv --clear "$repo/$1" || _fail "cannot create $repo/$1; see above"
}

_fail() {
    echo "autotune: $1" >&2
    exit 1
}
