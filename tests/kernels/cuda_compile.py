"""The CUDA backend compiles for every GPU it is meant for, and ptxas' report for the Spark's keeps
the limits of tests/kernels/ptxas_limits.json.

usage: cuda_compile.py ROOT BUILD    (needs cmake, ninja and nvcc, or PyPI to get nvcc from)

Without a compiler it is skipped (77); with TENSORFOLD_REQUIRE=cuda-compile that is a failure.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

ARCHITECTURES = "90-real;120-real;121-real"
REPORTED = "sm_121"


def toolkit(root: pathlib.Path, build: pathlib.Path) -> pathlib.Path | None:
    found = subprocess.run([root / "packaging/cuda-toolkit", build.parent / "cuda-toolkit"],
                           stdout=subprocess.PIPE, text=True)
    return pathlib.Path(found.stdout.strip()) if found.returncode == 0 else None


def compile_all(root: pathlib.Path, build: pathlib.Path, cuda: pathlib.Path) -> str:
    """Builds the backend; returns what the compilers printed."""
    subprocess.run(["cmake", "-S", root, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    "-DTF_CUDA=ON", "-DTF_TESTS=OFF", "-DTF_CUDA_PTXAS_REPORT=ON",
                    f"-DTF_CUDA_ARCHITECTURES={ARCHITECTURES}", f"-DCUDAToolkit_ROOT={cuda}",
                    f"-DCMAKE_CUDA_COMPILER={cuda}/bin/nvcc"],
                   check=True, stdout=subprocess.DEVNULL)
    built = subprocess.run(["cmake", "--build", build, "--target", "tensorfold_cuda"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode != 0:
        print(built.stdout[-8000:])
        sys.exit("the CUDA backend does not compile")
    return built.stdout


def short_name(symbol: str) -> str:
    """The kernel's own name and, for an instance of a template, its arguments."""
    text = subprocess.run(["c++filt", symbol], stdout=subprocess.PIPE, text=True).stdout.strip()
    text = text.replace("(anonymous namespace)::", "").replace("tensorfold::cuda::", "")
    text = re.sub(r"_GLOBAL__N__\w+::", "", text)
    return re.sub(r"^void ", "", text.split("(")[0])


def read_report(text: str, architecture: str) -> dict[str, dict[str, int]]:
    """Kernel name -> registers, static shared memory and spilled bytes."""
    kernels: dict[str, dict[str, int]] = {}
    current = None
    for line in text.splitlines():
        if m := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            current = short_name(m[1]) if m[2].startswith(architecture) else None
            if current:
                kernels[current] = {"registers": 0, "shared_bytes": 0, "spilled_bytes": 0}
        if current is None:
            continue
        if m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernels[current]["spilled_bytes"] += int(m[1]) + int(m[2])
        if m := re.search(r"Used (\d+) registers", line):
            kernels[current]["registers"] = int(m[1])
            if s := re.search(r"(\d+) bytes smem", line):
                kernels[current]["shared_bytes"] = int(s[1])
    return kernels


def spills_of(kernels: dict[str, dict[str, int]], allowed: dict) -> list[str]:
    """No kernel spills, but those of the list, each with its reason and its bound."""
    problems = []
    for name, k in sorted(kernels.items()):
        most = allowed[name]["bytes_max"] if name in allowed else 0
        if k["spilled_bytes"] > most:
            problems.append(f"{name}: {k['spilled_bytes']} bytes spilled (at most {most})")
    for name, row in allowed.items():
        if not row.get("reason"):
            problems.append(f"{name}: may spill, but no reason is given")
        if kernels.get(name, {"spilled_bytes": 0})["spilled_bytes"] == 0:
            problems.append(f"{name}: in the list of kernels that spill, but it does not")
    return problems


def problems_of(kernels: dict[str, dict[str, int]], limits: dict) -> list[str]:
    most = limits["shared_bytes_max"]
    problems = spills_of(kernels, limits["spills"])
    for name, k in sorted(kernels.items()):
        if k["shared_bytes"] > most:
            problems.append(f"{name}: {k['shared_bytes']} bytes of shared memory (at most {most})")
    for name, registers in limits["hot"].items():
        found = [n for n in kernels if n == name or n.startswith(name + "<")]
        if not found:
            problems.append(f"{name}: in the list of hot kernels, but not in the report")
        for n in found:
            if kernels[n]["registers"] > registers:
                problems.append(f"{n}: {kernels[n]['registers']} registers (at most {registers})")
    return problems


SAMPLE = """ptxas info    : Compiling entry function '_ZN10tensorfold4cuda3hotEv' for 'sm_121'
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 200 registers, used 1 barriers, 120000 bytes smem
"""


# What the daemon finds in the library; everything else stays inside.
EXPORTED = {"tensorfold_open_device"}


def exports(build: pathlib.Path) -> list[str]:
    library = build / "kernels/cuda/libtensorfold_cuda.so"
    listed = subprocess.run(["nm", "-D", "--defined-only", library], stdout=subprocess.PIPE,
                            text=True, check=True).stdout
    found = {line.split()[-1] for line in listed.splitlines() if line.strip()}
    inside = subprocess.run(["nm", "-C", library], stdout=subprocess.PIPE, text=True).stdout
    problems = [f"exported: {sorted(found)}, not {sorted(EXPORTED)}"] if found != EXPORTED else []
    if "CudaExchangeLane::passed" not in inside:
        problems.append("the exchange lane of ranks on GPUs is not in the library")
    return problems


def check_itself() -> None:
    """A kernel past every limit gives a problem for each."""
    kernels = read_report(SAMPLE, REPORTED)
    limits = {"shared_bytes_max": 101376, "hot": {"hot": 128, "gone": 1}, "spills": {}}
    found = problems_of(kernels, limits)
    if len(found) != 4:
        sys.exit(f"the reader of ptxas' report is wrong: {kernels}, {found}")
    for row, count in (({"bytes_max": 12, "reason": "r"}, 0), ({"bytes_max": 11, "reason": "r"}, 1),
                       ({"bytes_max": 12}, 1)):
        if len(spills_of(kernels, {"hot": row})) != count:
            sys.exit(f"the list of kernels that may spill is read wrongly: {row}")
    if len(spills_of({}, {"gone": {"bytes_max": 1, "reason": "r"}})) != 1:
        sys.exit("a kernel that no longer spills stays in the list")


def main() -> int:
    root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    check_itself()
    build.parent.mkdir(parents=True, exist_ok=True)
    cuda = toolkit(root, build)
    if cuda is None:
        print("skipped: no CUDA compiler (packaging/cuda-toolkit says why)")
        return 1 if "cuda-compile" in os.environ.get("TENSORFOLD_REQUIRE", "") else 77
    log = build.parent / (build.name + ".log")
    text = compile_all(root, build, cuda)
    if "Compiling entry function" in text:  # nothing is printed when nothing was to be built
        log.write_text(text)
    kernels = read_report(log.read_text(), REPORTED)
    limits = json.loads((root / "tests/kernels/ptxas_limits.json").read_text())
    problems = problems_of(kernels, limits) + exports(build)
    for problem in problems:
        print(problem)
    print(f"cuda: {len(kernels)} kernels for {REPORTED}, {len(problems)} past their limits")
    return 1 if problems or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
