"""A Slurm cluster of one node and without accounting: munged, slurmctld and slurmd of the current user."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
# SlurmUser and SlurmdUser are the current user, so the daemons need neither root nor the user `slurm`.
CONFIGURATION = """
ClusterName=flnl
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
KillWait=10
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing() -> str | None:
    """Return why the cluster cannot be started here."""
    lacking = [name for name in PROGRAMS if not _path(name)]
    if lacking:
        return f"Slurm's {', '.join(lacking)} not found: Debian's slurm-wlm and munge are not installed"
    return None


@contextlib.contextmanager
def slurm_cluster(folder: Path):
    """Start the daemons, yield the path of slurm.conf, and stop them."""
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        ports = [free.getsockname()[1] for free in (one, other)]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    host, user = socket.gethostname().split(".")[0], subprocess.check_output(["id", "-un"], text=True).strip()
    cpus = os.cpu_count()
    configuration.write_text(
        CONFIGURATION.format(host=host, user=user, folder=folder, ports=ports, cpus=cpus)
    )
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    files = [
        f"--{name}={folder / 'munge'}.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")
    ]
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={key}", *files],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", host],
    )
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            daemon = subprocess.Popen(
                [_path(command[0]), *command[1:]], env=environment, stdout=log, stderr=log
            )
            stack.callback(_end, daemon)
            if command[0] == "munged":
                _until(lambda: (folder / "munge.socket").exists(), daemon)
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%n"]
        _until(lambda: subprocess.run(idle, env=environment, capture_output=True).stdout, daemon)
        yield configuration


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


def _until(condition, daemon: subprocess.Popen) -> None:
    for _ in range(600):
        if condition():
            return
        assert daemon.poll() is None, f"{daemon.args[0]} ended with exit code {daemon.returncode}"
        time.sleep(0.1)
    raise AssertionError(f"waited for {daemon.args[0]} in vain")


def _end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
