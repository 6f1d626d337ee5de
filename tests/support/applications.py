"""An application that runs on releases of a store: on some of them it is well, on some not, on some it ends at once.

`RESTART` restarts it where there is no systemd. What a release makes of it is a word of the release's name:
`mute` never becomes well, `mortal` ends at once, `brief` ends after a moment, `slow` takes a second to say that it is
well; on all others it is.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from toolchain.device import application

PROGRAM = """
cd "$1" || exit
release=$(readlink -f "$2/current") || exit
name=$(sed -n 's/^  "name": "\\(.*\\)",$/\\1/p' "$release/manifest.json")
echo "starting on $name"
case $name in
  *mortal*) echo "no such camera" >&2; exit 3 ;;
  *brief*) sleep 0.2; exit 4 ;;
esac
echo "$$ ${release##*/} $name" >.running-$$
mv .running-$$ running
exec sleep 1000
"""

RESTART = """
folder=$1 root=$2
read -r pid rest <$folder/running && kill $pid
rm -f $folder/running
[ -d $root/current ] || exit 0
setsid sh $folder/program $folder $root >/dev/null 2>&1 &
"""

HEALTH = """
read -r pid digest name <$1/running && kill -0 "$pid" || { echo "nobody answers"; exit 1; }
case $name in *mute*) echo "the model is not loaded"; exit 1 ;; *slow*) sleep 1 ;; esac
"""


@dataclass(frozen=True)
class Place:
    """Where an application is, and of which store, or slot of one."""

    folder: Path
    root: Path

    def put(self) -> Place:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in {"program": PROGRAM, "restart": RESTART, "health": HEALTH}.items():
            (self.folder / name).write_text(text)
        return self

    @property
    def restart(self) -> str:
        return f"sh {self.folder}/restart {self.folder} {self.root}"

    @property
    def health(self) -> str:
        return f"sh {self.folder}/health {self.folder}"

    @property
    def start(self) -> str:
        return f"/bin/sh {self.folder}/program {self.folder} {self.root}"

    def running(self) -> tuple[int, str]:
        """Return the application's process and its release; 0 and "" where there is none."""
        try:
            pid, digest, _ = (self.folder / "running").read_text().split(maxsplit=2)
            os.kill(int(pid), 0)
        except (OSError, ValueError):
            return 0, ""
        return int(pid), digest

    def runs(self, digest: str, seconds: float) -> bool:
        """Wait until it runs on a release."""
        deadline = time.monotonic() + seconds
        while self.running()[1] != digest:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def end(self) -> None:
        pid, _ = self.running()
        if pid:
            os.kill(pid, signal.SIGKILL)


def shipped_unit(place: Place) -> str:
    """The unit that comes with the toolchain, with the paths of a test."""
    text = Path(application.__file__).with_name("edge-application.service").read_text()
    text = text.replace("%h/.local/share/edge-toolchain", str(place.root))
    return text.replace(f"%h/bin/detector --release {place.root}/current", place.start)
