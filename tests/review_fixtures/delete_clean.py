import os
import shutil
import tempfile
from pathlib import Path


def clean(folder: Path) -> None:
    """The caller decides; its calls are looked at."""
    shutil.rmtree(folder)
    for part in folder.glob("*.part"):
        part.unlink()


scratch = tempfile.mkdtemp()
with tempfile.TemporaryDirectory() as folder:
    os.remove(os.path.join(folder, "a"))
    clean(folder)
shutil.rmtree(scratch)
names.remove("a")
memory.unlink
