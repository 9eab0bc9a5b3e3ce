"""tfctl model verify and sync, and tfctl --host, with a stand-in for ssh that runs commands here.

usage: model_folder.py TFCTL MODEL_FOLDER   (a small model, to be prepared)
"""

import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import model_server as ms

TFCTL, MODEL = "", ""
WAIT_S = 300
REPO, COMMIT = "owner/model", "c3" * 20
FILES = {
    "config.json": b'{"hidden": 1}',
    "model-00001-of-00002.safetensors": random.Random(1).randbytes(700_000),
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(100_000),
    "engram/model-00047.safetensors": random.Random(3).randbytes(90_000),
}
LARGE_MIB = 100
# What ssh does: options, "--", a host, and words for a shell there. The host "down" can't be reached.
SSH = """#!/bin/sh
echo "$@" >>"$FAKE_SSH_LOG"
while :; do
  case "$1" in
    -o|-l) shift 2 ;;
    -t) shift ;;
    --) shift; break ;;
    *) break ;;
  esac
done
host=$1; shift
[ "$host" = down ] && { echo "ssh: connect to host down port 22: No route to host" >&2; exit 255; }
[ -z "$host" ] && exit 255
PATH=$FAKE_SSH_PATH exec sh -c "$*"
"""


def cached_share(path: pathlib.Path) -> float:
    """How much of a file is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with open(path, "rb") as file:
        where = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert where not in (None, ctypes.c_void_p(-1).value) and libc.mincore(where, size, pages) == 0
    libc.munmap(where, size)
    return sum(page & 1 for page in pages.raw) / len(pages)


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory(prefix="tf-folder-")
        self.root = pathlib.Path(self.temp.name)
        self.folder, self.there = self.root / "model", self.root / "there" / "model"
        self.log = self.root / "ssh.log"
        here, far = self.root / "bin", self.root / "far"
        here.mkdir()
        far.mkdir()
        (here / "ssh").write_text(SSH)
        (here / "ssh").chmod(0o755)
        (far / "tfctl").symlink_to(TFCTL)
        path = os.environ["PATH"]
        self.env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | {
            "PATH": f"{here}:{path}", "FAKE_SSH_PATH": f"{far}:{path}", "FAKE_SSH_LOG": str(self.log)}
        self.far = far
        for name, data in FILES.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)

    def tearDown(self):
        self.temp.cleanup()

    def tfctl(self, *args, code=0, stdin=None) -> subprocess.CompletedProcess:
        run = subprocess.run([TFCTL, *map(str, args)], capture_output=True, text=True, timeout=WAIT_S,
                             env=self.env, input=stdin)
        self.assertEqual(run.returncode, code, run.stderr + run.stdout)
        return run

    def record(self):
        self.tfctl("model", "verify", self.folder, "--record")

    # verify

    def test_verify_names_what_is_wrong(self):
        self.assertIn("nothing says what its files should be",
                      self.tfctl("model", "verify", self.folder, code=1).stderr)
        self.record()
        run = self.tfctl("model", "verify", self.folder)
        self.assertEqual(run.stdout, f"{self.folder}: 4 files, 890.0 kB read, all right\n")
        large = self.folder / "model-00001-of-00002.safetensors"
        data = bytearray(large.read_bytes())
        data[len(data) // 2] ^= 1
        large.write_bytes(data)
        (self.folder / "config.json").unlink()
        os.truncate(self.folder / "engram/model-00047.safetensors", 1000)
        (self.folder / "model-extra.safetensors").write_bytes(b"x")
        run = self.tfctl("model", "verify", self.folder, "--parallel", "2", code=1)
        self.assertEqual(run.stdout.splitlines(), [
            f"{self.folder}/config.json: is missing",
            f"{self.folder}/engram/model-00047.safetensors: has 1000 bytes, not 90000",
            f"{large}: has the SHA-256 {hashlib.sha256(data).hexdigest()}, not "
            f"{hashlib.sha256(FILES[large.name]).hexdigest()}",
            f"{self.folder}/model-extra.safetensors: nothing is known of it",
            f"{self.folder}: 4 files, 800.0 kB read, 3 wrong or missing"])
        document = json.loads(self.tfctl("model", "verify", self.folder, "--json", code=1).stdout)
        self.assertEqual((document["schema_version"], document["ok"]), (1, False))
        self.assertEqual([p["path"] for p in document["problems"]],
                         ["config.json", "engram/model-00047.safetensors", large.name])
        self.assertEqual(document["unknown"], ["model-extra.safetensors"])

    def test_every_byte_of_every_file_counts(self):
        self.record()
        rng = random.Random(4)
        for name, data in FILES.items():
            for at in (0, len(data) - 1, rng.randrange(len(data))):
                (self.folder / name).write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1:])
                self.assertIn(f"{name}: has the SHA-256", self.tfctl("model", "verify", self.folder, code=1).stdout)
            (self.folder / name).write_bytes(data)
        self.tfctl("model", "verify", self.folder)

    def test_hashing_leaves_no_page_cache_behind(self):
        # The page cache would compete with the model for a Spark's one memory.
        large = self.folder / "model-00001-of-00002.safetensors"
        with open(large, "wb") as file:
            for _ in range(LARGE_MIB):
                file.write(random.Random(9).randbytes(4096) * 256)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_share(large) > 0.5:
            self.skipTest("the temporary folder is in memory")
        self.record()
        self.assertLess(cached_share(large), 0.1)
        with open(large, "rb") as file:
            while file.read(1 << 20):
                pass
        self.assertGreater(cached_share(large), 0.9)  # as after a copy
        self.tfctl("model", "verify", self.folder)
        self.assertLess(cached_share(large), 0.1)

    def test_loading_leaves_no_page_cache_behind(self):
        model, images = self.root / "loaded", self.root / "images"
        shutil.copytree(MODEL, model)
        weights = model / "model.safetensors"
        with open(weights, "rb+") as file:
            os.fsync(file.fileno())  # what is not on disk yet cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if cached_share(weights) > 0.5:
                self.skipTest("the temporary folder is in memory")
            while file.read(1 << 20):
                pass
        self.assertGreater(cached_share(weights), 0.9)  # as after a copy
        self.tfctl("model", "prepare", "--model", model, "--out", images, "--world", "1")
        self.assertLess(cached_share(weights), 0.1)

    def test_a_damaged_record_is_no_record(self):
        self.record()
        path = self.folder / "tensorfold-files.json"
        good = json.loads(path.read_text())
        for change, words in ((lambda d: d.update(schema_version=2), "schema_version"),
                              (lambda d: d.update(files={}), "must be lists"),
                              (lambda d: d["files"][0].update(path="../x"), "leaves the folder"),
                              (lambda d: d["files"][0].update(sha256="12"), "no SHA-256"),
                              (lambda d: d["files"][0].update(bytes=-1), "not a size"),
                              (lambda d: d["files"][0].update(source=7), "none of the sources"),
                              (lambda d: d["files"].append(d["files"][0]), "comes twice")):
            bad = json.loads(json.dumps(good))
            change(bad)
            path.write_text(json.dumps(bad))
            self.assertIn(words, self.tfctl("model", "verify", self.folder, code=1).stderr)
        path.write_text(path.read_text()[:-20])
        self.assertIn("tensorfold-files.json", self.tfctl("model", "verify", self.folder, code=1).stderr)

    def test_verify_against_the_repository(self):
        hub = ms.Hub()
        hub.repos[REPO] = ms.Repo({COMMIT: dict(FILES)}, COMMIT)
        args = ("model", "verify", self.folder, "--repo", REPO, "--base-url", hub.url)
        self.tfctl(*args)
        (self.folder / "config.json").write_bytes(b'{"hidden": 2}')
        self.assertIn("config.json: has the git SHA-1", self.tfctl(*args, code=1).stdout)
        self.assertEqual(hub.files_asked(), [])
        hub.close()

    def test_prepared_images_carry_their_hashes(self):
        images = self.root / "images"
        prepare = ("model", "prepare", "--model", MODEL, "--out", images, "--world", "2")
        run = self.tfctl(*prepare)
        self.tfctl("model", "verify", images)
        image = images / "rank-1-of-2.tfimage"
        # Again: what is there and right stays, what is not is written anew.
        times = {p.name: p.stat().st_mtime_ns for p in images.iterdir()}
        run = self.tfctl(*prepare)
        self.assertIn("is there already", run.stdout)
        self.assertEqual(times, {p.name: p.stat().st_mtime_ns for p in images.iterdir()})
        whole = image.read_bytes()
        rng = random.Random(5)
        found = 0
        for _ in range(12):
            at = rng.randrange(len(whole))
            image.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1:])
            run = subprocess.run([TFCTL, "model", "verify", str(images)], capture_output=True, text=True)
            found += run.returncode != 0
            if run.returncode:
                self.assertIn("rank-1-of-2.tfimage", run.stdout)
        self.assertGreater(found, 8)  # bytes between sections do not count
        image.write_bytes(whole[:-4096])
        self.assertIn("its superblock says", self.tfctl("model", "verify", images, code=1).stdout)
        self.tfctl(*prepare)
        self.assertEqual(image.read_bytes(), whole)
        self.tfctl("model", "verify", images)

    def test_a_killed_prepare_goes_on(self):
        clean, cut = self.root / "clean", self.root / "cut"
        args = ["--model", MODEL, "--world", "1", "--with-engram"]
        self.tfctl("model", "prepare", *args, "--out", clean)
        rows, went_on = cut / "rank-0-of-1.tfimage.part.rows", 0
        for _ in range(6):  # each time killed soon after it has written down how far it is
            before = rows.stat().st_mtime_ns if rows.exists() else 0
            process = subprocess.Popen([TFCTL, "model", "prepare", *args, "--out", str(cut)],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            while process.poll() is None and not (rows.exists() and rows.stat().st_mtime_ns > before):
                time.sleep(0.001)
            process.kill()
            went_on += "goes on at byte" in process.communicate()[0]
        self.assertGreater(went_on, 0)
        self.tfctl("model", "prepare", *args, "--out", cut)
        self.assertEqual([p.name for p in cut.iterdir()], ["rank-0-of-1.tfimage"])
        self.assertEqual((cut / "rank-0-of-1.tfimage").read_bytes(), (clean / "rank-0-of-1.tfimage").read_bytes())

    # sync

    def sync(self, *more, host="spark2", code=0):
        return self.tfctl("model", "sync", host, "--dir", self.folder, "--to", self.there, *more, code=code)

    def copied(self) -> dict:
        return {p.relative_to(self.there).as_posix(): p.read_bytes() for p in self.there.rglob("*") if p.is_file()}

    def test_sync_copies_what_is_recorded_and_verifies_it_there(self):
        (self.folder / "model-00001-of-00002.safetensors.part-0123").write_bytes(b"half")
        run = self.sync("--limit-rate", "100M")
        self.assertIn("all right", run.stdout)
        copied = self.copied()
        copied.pop("tensorfold-files.json")
        self.assertEqual(copied, FILES)
        # Nothing changed: nothing is copied.
        self.assertIn("spark2: 0 B to copy", self.sync().stderr)
        # Damage there that a look at size and time does not show is found by hash.
        target = self.there / "engram/model-00047.safetensors"
        before = target.stat()
        data = bytearray(target.read_bytes())
        data[7] ^= 1
        target.write_bytes(data)
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertIn(f"{target}: has the SHA-256", self.sync(code=1).stdout)

    def test_sync_says_what_failed(self):
        self.assertIn("ssh to down failed", self.sync(host="down", code=1).stderr)
        for host in ("", "a b", "x;y", "x@-y"):
            self.assertIn("a host is", self.sync(host=host, code=1).stderr)
        self.record()
        (self.folder / "config.json").unlink()
        self.assertIn("config.json: missing", self.sync(code=1).stderr)
        (self.folder / "config.json").write_bytes(FILES["config.json"])
        (self.far / "tfctl").unlink()
        if shutil.which("tfctl", path=self.env["FAKE_SSH_PATH"]) is None:
            self.assertIn("tfctl is not installed", self.sync(code=1).stderr)

    # --host

    def test_arguments_arrive_as_they_are(self):
        (self.far / "tfctl").unlink()
        (self.far / "tfctl").write_text('#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done\nexit 6\n')
        (self.far / "tfctl").chmod(0o755)
        rng = random.Random(6)
        odd = ["", " ", "a b", "$HOME", "`id`", "'", "\"", "\\", "a'b'c", "*", "~", "-x", "\n", "ü", "#", ";reboot", "!!"]
        odd += ["".join(rng.choice(" '\"\\$`&|<>(){}[]*?#~;\n\tab") for _ in range(rng.randrange(1, 12))) for _ in range(40)]
        run = self.tfctl("--host", "spark2", "status", *odd, code=6)
        self.assertEqual(run.stdout.split("\0")[:-1], ["status", *odd])

    def test_a_verb_runs_there_with_its_output_and_status(self):
        run = self.tfctl("--host", "operator@spark2", "version")
        self.assertEqual(run.stdout, self.tfctl("version").stdout)
        self.assertIn("-o BatchMode=yes", self.log.read_text())
        self.tfctl("--host", "spark2", "--socket", self.root / "none.sock", "status", code=3)
        self.tfctl("--host", "spark2", "nonsense", code=2)
        text = self.tfctl("--host", "spark2", "prompt", "decode", stdin="[]").stdout
        self.assertEqual(text, self.tfctl("prompt", "decode", stdin="[]").stdout)

    def test_what_fails_is_told_apart(self):
        self.assertIn("ssh to down failed", self.tfctl("--host", "down", "status", code=3).stderr)
        (self.far / "tfctl").unlink()
        if shutil.which("tfctl", path=self.env["FAKE_SSH_PATH"]) is None:
            self.assertIn("has no tfctl", self.tfctl("--host", "spark2", "status", code=1).stderr)
        for args in (("--host",), ("--host", "spark2"), ("--host", "-oProxyCommand=x", "status"),
                     ("--host", "a b", "status"), ("--json", "--host", "spark2", "status")):
            self.tfctl(*args, code=2)
        self.env["PATH"] = "/nonexistent"
        self.assertIn("ssh cannot be started", self.tfctl("--host", "spark2", "status", code=1).stderr)


if __name__ == "__main__":
    TFCTL, MODEL = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main()
