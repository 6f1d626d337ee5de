"""Every command block of README.md and docs/ runs as it stands there, or the table says why it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.support import desks, documents, labs, registries
from tests.support.documents import Block


@dataclass(frozen=True)
class Shown:
    """A block that is not run.

    Attributes:
        why: The reason.
    """

    why: str


@dataclass(frozen=True)
class Written:
    """A block that is the content of a file, which later blocks of the page read.

    Attributes:
        path: The file.
        replace: As that of `Run`.
    """

    path: str
    replace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A block that is run.

    Attributes:
        replace: What is put in place of what: regular expressions.
        omit: The beginnings of lines that are not run, each with the reason.
        allow: The beginnings of lines that may also end with another exit code than 0, each with that code.
        nightly: The beginnings of lines that CI leaves out, on a page that takes minutes.
        before: A script that makes what the block takes for granted.
        after: A script that checks what the block has made.
    """

    replace: Mapping[str, str] = field(default_factory=dict)
    omit: Mapping[str, str] = field(default_factory=dict)
    allow: Mapping[str, str] = field(default_factory=dict)
    nightly: tuple[str, ...] = ()
    before: str = ""
    after: str = ""

    def script(self, block: Block, *, is_nightly: bool) -> str:
        """Return the block as it is run."""
        lines = block.text.replace("\\\n", " ").splitlines()
        starts = (*self.omit, *self.allow, *self.nightly)
        assert all(any(line.startswith(start) for line in lines) for start in starts), self
        omitted = (*self.omit, *(() if is_nightly else self.nightly))
        kept = [self._line(line) for line in lines if not line.startswith(omitted)]
        return "\n".join([self.before, *kept, self.after])

    def _line(self, line: str) -> str:
        codes = [code for start, code in self.allow.items() if line.startswith(start)]
        for pattern, new in self.replace.items():
            line = re.sub(pattern, new, line)
        # Before the comment that ends the line.
        command, space, comment = re.match(r"(.*?)(\s*)(#.*)?$", line).groups()
        return f"{command} || [ $? = {codes[0]} ]{space}{comment or ''}" if codes else line


OUTPUT = Shown("it is what a command prints")
DRAWING = Shown("it is a drawing")
SLOW = "it takes longer than all other blocks together"
DOCKER = "it builds images by Docker, as test_containers.py does"
VIRTUAL = Shown("it emulates boards by Docker, as test_farm.py and test_deploy_boards.py do")
ANDROID = Shown("it needs an Android device; test_adb.py and test_android.py have what stands in for one")
MALI = "it needs a Mali GPU, or hours of emulation; test_opencl_board.py has what stands in for one"
MESA = Shown("it downloads Mesa's compiler; test_mali_cost.py runs it")
DASK = Shown("it needs several machines; tests/unit/tuning/build/cluster runs clusters of Dask on this one")
FPGA = Shown("it needs a board with an FPGA")
PICTURES = {"resnet-50": "model.onnx"}
LONG = ("README.md", "docs/tuning.md", "docs/adding-a-board.md")
NIGHTLY = {
    *("docs/tuning.md", "docs/vta.md", "docs/profile.md", "docs/gate.md"),
    *("docs/registry.md", "docs/rollout.md", "docs/offline.md", "docs/cpu.md", "docs/quantize.md"),
}  # a minute or more each; the tests of these subjects run the same commands
DENSE = {r"resnet-50|mobilenet": "mlp"}
DEVICES = """printf '[devices.%s]\\nboard = "%s"\\nhost = "%s"\\n' {} >devices.toml"""
SERVED = DEVICES.format("rk3399-1 rk3399 10.0.0.7")

TABLE: Mapping[str, list[tuple[str, Shown | Written | Run]]] = {
    "README.md": [
        ("make deploy ", Run({"make deploy": "make deploy MODEL=mlp"}, {"make test": "CI runs all tests"})),
        ("$ make deploy", OUTPUT),
        (
            "make tune",
            Run(
                {r"make (\w+)": r"make \1 MODEL=mlp"},
                # make's code for all codes: there is nothing to compare where no candidate was faster.
                allow={"make compare": "2"},
                nightly=("make compare", "make deploy TRIALS"),
            ),
        ),
        (
            "make deploy HOST=me@10.0.0.7",
            Run(before="mkdir -p path/to && cp model.onnx path/to/"),
        ),
        ("make containers", Run({"deploy": "deploy MODEL=mlp"}, {"make containers": DOCKER})),
        ("make farm", VIRTUAL),
        ("make serve", Run(nightly=("make tune", "make deploy"), before=SERVED, after="toolchain farm down")),
        (
            ". .venv/bin/activate",
            Run(
                # The board type that a device has depends on the machine that plays it here.
                {**PICTURES, r"ghcr\.io": "REGISTRY", "(--name pc)": r"\1 --board x86_64-v3"},
                {"toolchain survey": SLOW},
                nightly=(
                    *("toolchain quantize", "toolchain inspect", "toolchain push", "toolchain deploy oci:"),
                    *("toolchain bench", "toolchain tasks", "toolchain tune", "toolchain records", "toolchain rollout"),
                ),
                before="""printf '[devices.kitchen]\\nboard = "x86_64-v3"\\nhost = "10.0.0.8"\\n' >fleet.toml""",
                after="sh update.run --check --root ../device/.local/share/edge-toolchain && test -s y.npz",
            ),
        ),
    ],
    "CONTRIBUTING.md": [
        ("make setup", Shown("CI runs each line of it, in .ci/run")),
        ("make mali-zoo", Shown(SLOW)),
    ],
    "docs/adding-a-board.md": [
        ("toolchain board add", Run(after="toolchain bench --host 10-0-0-7")),
        ("10.0.0.7 has", OUTPUT),
        ("# boards/", Written("boards/haswell.toml")),
        ("toolchain board check", Run(DENSE)),
        ("[devices.bench-1]", Written("devices.toml", {r'root = "/data/models"': 'root = "~/models"'})),
        ("[devices.bench-2.run]", Shown("it needs a systemd of the login's; test_application.py has one")),
    ],
    "docs/android.md": [
        ("export TVM_NDK_CC", Shown("it needs an NDK")),
        ("adb devices", ANDROID),
        ("adb forward", ANDROID),
    ],
    "docs/api.md": [("# measure.py", Written("measure.py")), ("python measure.py", Run())],
    "docs/architecture.md": [(" model.onnx", DRAWING), ("cli, pytest_plugin", DRAWING)],
    "docs/ci.md": [
        ("python3 -m pip install", Shown("test_ci_templates.py installs a checkout and a wheel")),
        ("jobs:", Shown("test_ci_templates.py runs the action's steps")),
        ("# test_model.py", Written("test_model.py")),
        (
            "pytest --board rpi4",
            Run(
                before=DEVICES.format("one rpi4 10.0.0.7") + "; mkdir -p build\n"
                "toolchain build mlp --board rpi4 -o bundle && toolchain package bundle -o build/new.tar",
                after="grep -q 'tests=\"3\"' report.xml",
            ),
        ),
        ("python3 -m pip install 'labgrid", Shown("it needs a coordinator; test_labgrid.py has one")),
    ],
    "docs/containers.md": [
        ("toolchain containers list", Shown(DOCKER)),
        ("docker build", Shown(DOCKER)),
        ("toolchain build mobilenet", Run(after="cmp first/manifest.json second/manifest.json")),
        ("docker/base.sh", Shown(DOCKER)),
        ("docker run", Shown(DOCKER)),
        ("toolchain containers inventory", Shown(DOCKER)),
        ("toolchain containers build", Shown("it needs an NDK")),
    ],
    "docs/cpu.md": [
        ("toolchain build resnet-50 --no-winograd", Run(DENSE)),
        ("toolchain inspect model", Run(DENSE | {r"FILE\.onnx": "model.onnx"})),
    ],
    "docs/device.md": [
        ("ROOT/", DRAWING),
        (
            "toolchain deploy detector.onnx",
            Run(
                {r"(detector|classifier)\.onnx": "mlp"},
                before="toolchain deploy mlp --seed 1 --board rpi4 --host me@10.0.0.7 --slot detector",
            ),
        ),
        ("$ toolchain bench --slot", OUTPUT),
        (
            "toolchain run",
            Run(
                before="""toolchain deploy model.onnx --board rpi4 --host 10.0.0.7
python -c 'import numpy; numpy.savez("x.npz", x=numpy.zeros((1, 3, 224, 224), "float32"))'""",
                after="test -s y.npz",
            ),
        ),
        ("import numpy", Shown("test_run.py runs it")),
        ("cd ~/.local", Shown("test_run.py runs it on a device")),
    ],
    "docs/evaluate.md": [
        ("toolchain evaluate", Shown("test_evaluate.py runs such evaluations")),
        ("# mymetrics.py", Shown("test_evaluate.py calls such functions")),
        ("toolchain evaluate detector.tar", Shown("test_evaluate.py evaluates the steps of a release so")),
        ("# mypostprocess.py", Shown("test_evaluate.py calls such functions")),
        ("toolchain evaluate detector.tar", Shown("test_evaluate.py runs such evaluations")),
        ("toolchain deploy int8.onnx", Shown("test_evaluate.py deploys with such a file")),
        ('data = "pictures"', Shown("test_evaluate.py deploys with such a file")),
    ],
    "docs/pictures.md": [
        ("toolchain deploy yolov8n.onnx", Shown("test_pictures.py deploys and runs a smaller model with such steps")),
        ("pre = [", Shown("test_pictures.py deploys with such a file")),
        ("--post boxes", Shown("test_pictures.py deploys a smaller model with such a step")),
        ("--post boxes", Shown("tests/unit/native/test_anchors.py decodes with such steps")),
        ("--post yolo:head=v5-raw", Shown("test_pictures.py deploys a smaller model with such a step")),
        ("edge_image image", Shown("test_pictures.py runs pictures of each format through the library")),
        ("edge_mask mask", Shown("test_pictures.py reads masks by tests/data/sdk/again.c")),
        ("edge_crops crops", Shown("test_two_models.py runs tests/data/sdk/crops.c, which does so")),
        ("toolchain run --board", Shown("test_two_models.py runs two models so")),
    ],
    "docs/sound.md": [
        ("toolchain deploy keywords.onnx", Shown("test_sounds.py deploys and runs a smaller model with such steps")),
        ("pre = [", Shown("test_sounds.py deploys with such a file")),
        ("toolchain deploy silero_vad", Shown("test_sound_streams.py deploys it, and hears streams")),
        ("static void heard", Shown("test_sound_streams.py runs tests/data/sdk/stream.c")),
        ("edge_audio audio", Shown("test_sounds.py runs sounds of each format through the library")),
    ],
    "docs/text.md": [
        ("toolchain build decoder.onnx", Shown("test_texts.py deploys a smaller model with such steps")),
        ("const char* text", Shown("test_texts.py reads texts through the library")),
    ],
    "docs/gate.md": [
        (
            "toolchain gate new.tar",
            Run(
                before="""toolchain build mlp --board rpi4 -o new && toolchain package new -o new.tar
toolchain build mlp --board rpi4 --without all -o old && toolchain package old -o old.tar""",
                # Rounds of a moment decide nothing; make has one code for all codes.
                allow={"toolchain gate": "7", "make gate": "2"},
                after="test -s gate.html && test -s gate.xml && test -s gate.json",
            ),
        ),
        (
            "toolchain gate build/new.tar",
            Run(
                before="mkdir build && cp new.tar build/ && toolchain deploy old.tar --board rpi4 --host 10.0.0.7\n"
                "toolchain package old -o again.tar --json | grep -o 'sha256:[0-9a-f]*' >baseline.txt",
                allow={"toolchain gate": "7"},
            ),
        ),
        ("toolchain gate new.tar --base old.tar --p999", Shown("test_gate.py gates a p99.9, which takes minutes here")),
        ("toolchain gate int8.tar", Shown("test_evaluate.py gates the accuracy of two releases")),
    ],
    "docs/memory.md": [("toolchain build resnet-18 --max-ram 128M", Run(DENSE | {"resnet-18": "mlp"}))],
    "docs/mali-checklist.md": [("make survey", Shown(MALI))],
    "docs/mali.md": [
        ("toolchain deploy mobilenet", Shown(MALI)),
        ("toolchain hardware", Shown(MALI)),
        ("toolchain inspect kernels", MESA),
        ("toolchain build mobilenet", MESA),
    ],
    "docs/models.md": [
        ("error: inputs", Shown("an error; tests/unit/models/test_dimensions.py has one like it")),
        ("toolchain deploy encoder.onnx", Shown("tests/integration/test_any_size.py deploys an encoder like it")),
    ],
    "docs/offline.md": [
        ("toolchain build", Run(DENSE, after="sh update/install.sh --check")),
        ("$ sh update.run", OUTPUT),
        ("toolchain package resnet.oci.tar --as mender", Run()),
        (
            "toolchain package resnet.oci.tar --as rauc",
            Run(
                before="openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key.pem -out cert.pem 2>log",
                after="test -s update.raucb",
            ),
        ),
    ],
    "docs/profile.md": [
        (
            "toolchain profile ",
            Run(
                {"12 --against 11": "2 --against 1"},
                before="""toolchain build mlp --board rpi4 -o net && toolchain package net -o net.oci
toolchain build mlp --board rpi4 --without all -o other
toolchain deploy other --board rpi4 --host 10.0.0.7 && toolchain deploy net --board rpi4 --host 10.0.0.7
toolchain deploy mlp""",
                after="test -s profile.html && test -s profile.trace.json",
            ),
        ),
        ("[bench-2.power]", Shown("it needs a meter; tests/unit/device/test_energy.py has what stands in for one")),
    ],
    "docs/quantize.md": [
        ("toolchain quantize model.onnx --for cpu --calibration pictures/  ", Run({"--min-snr 30": "--min-snr 10"})),
        ("toolchain quantize model.onnx --for cpu", Shown("it needs labels; test_quantize.py has a budget")),
        ("toolchain deploy model.onnx --int8", Shown("it needs labels; test_evaluate.py deploys so")),
    ],
    "docs/report.md": [
        (
            "toolchain bench --period",
            Run(
                {"--for 10m": "--for 1s --budget 0"},
                before="toolchain deploy mlp --budget 0",
                after="test -s rate.html && test -s rate.json",
            ),
        ),
    ],
    "docs/registry.md": [
        (
            "toolchain build",
            Run(
                {
                    **DENSE,
                    r"ghcr\.io": "REGISTRY",
                    r"@sha256:642ae6c5\.\.\.": "@$(toolchain package resnet -o resnet.oci.tar --json"
                    " | grep -o 'sha256:[0-9a-f]*')",
                }
            ),
        ),
        (
            "oras pull",
            Run(
                {**DENSE, r"ghcr\.io": "REGISTRY", "skopeo copy": "skopeo copy --quiet --dest-tls-verify=false"},
                {"oras": "Debian has no package of it; test_oci.py pulls by its library"},
            ),
        ),
        ("toolchain inspect package", Run(omit={"oras": "Debian has no package of it; test_oci.py asks the registry"})),
    ],
    "docs/rollout.md": [
        ("toolchain rollout", Shown("it is run below, where its files are")),
        (
            "[types.rpi4]",
            Written(
                "fleet.toml",
                {"run = .*": "", "25.0": "2500.0", r'(host = ".*(\d)")': r'\1\nroot = "~/store-\2"', ":2222": ""},
            ),
        ),
        (
            "ansible-inventory",
            Run(
                omit={"ansible-inventory": "Ansible is not installed"},
                before="""toolchain build mlp --board rpi4 -o resnet && toolchain package resnet -o resnet.oci.tar
toolchain rollout resnet.oci.tar --fleet fleet.toml --waves 1,10%,100% --parallel 8 --stop-after 1
rm rollout.json
echo '{"_meta": {"hostvars": {"kitchen": {"ansible_host": "10.0.0.8", "edge_board": "rpi4"}}}}' >inventory.json""",
            ),
        ),
    ],
    "docs/sdk.md": [
        (
            "toolchain sdk",
            Run(
                {
                    "aarch64-linux-gnu-gcc": "gcc",
                    "mobilenet": "model.onnx",
                    r"(scp .* \S+@10\.0\.0\.7:)": r"\1DEVICE/",
                    r"(ssh \S+@10\.0\.0\.7) (.*)": r"\1 'cd && \2'",
                },
                before="head -c $((3 * 224 * 224 * 4)) /dev/zero >input.raw",
            ),
        ),
        (
            "toolchain deploy detector.onnx",
            Shown("test_two_models.py runs the application"),
        ),
        ("static void execute", Shown("it is a part of a program; tests/data/sdk/options.c has such an executor")),
        ("edge_tensor frame", Shown("it is a part of a program; tests/data/sdk/steps.c has such calls")),
        ("const int64_t sizes", Shown("it is a part of a program; tests/data/sdk/variants.c has such calls")),
        ("const int64_t sizes", Shown("it is a part of a program; tests/integration/test_any_size.py sets sizes")),
    ],
    "docs/security.md": [
        ("ssh-keygen", Run({"ssh-keygen -t": "ssh-keygen -q -N '' -t"})),
        ("toolchain package --unpack", Run()),
        ("scp trusted", Shown("it changes /etc; test_signed.py has devices with an /etc of their own")),
        ("CLIENT verify", Shown("test_conformance.py calls clients so")),
        ("toolchain affected", Shown("test_rollout.py and test_affected.py run it")),
    ],
    "docs/tuning.md": [
        ("toolchain tasks", Run(DENSE, allow={"toolchain compare": "2"})),
        ("toolchain tune mobilenet --board rk3588 --modelled", MESA),
        (
            "toolchain records forget",
            Run(DENSE, before="cd ~/.local/share/edge-toolchain/records && cp local.jsonl rk3399.jsonl && cd - >log"),
        ),
        (
            "toolchain records show",
            Run(
                {"FILE": "~/.local/share/edge-toolchain/records/local.jsonl"},
                before="cp ~/.local/share/edge-toolchain/records/local.jsonl a.jsonl && cp a.jsonl b.jsonl",
            ),
        ),
        (
            "toolchain farm up",
            Run(DENSE, before=f"{SERVED}; echo 'print(1)' >my_experiment.py", after="test ! -e ~/farm"),
        ),
        ("python3 -m pip install 'distributed", DASK),
        ("toolchain tune mobilenet --board rk3399 --builders", DASK),
    ],
    "docs/virtual-boards.md": [
        ("toolchain farm up", VIRTUAL),
        ("toolchain farm up --virtual rpi4=1 --musl", VIRTUAL),
        ("toolchain farm up --virtual rk3399=1", VIRTUAL),
        ("~/.cache", DRAWING),
        ("export BOARD_AUTHORIZED_KEY", VIRTUAL),
    ],
    "docs/vta-checklist.md": [
        ("git clone", Shown("it builds and loads a kernel module")),
        ("udmabuf@0", Shown("it is a device tree")),
        ("toolchain vta self-test", FPGA),
    ],
    "docs/vta.md": [
        ("make deploy", Run({"resnet-18": "model.onnx"})),
        ("toolchain quantize", Run({"resnet-18(?!-int8)": "model.onnx"})),
        ("toolchain vta kernels", Run({"resnet-18": "model.onnx"})),
        ("sed", Run({"resnet-18": "model.onnx"})),
    ],
}


@pytest.mark.parametrize("page", documents.PAGES, ids=documents.name_of)
def test_the_table_has_the_blocks_of_each_page(page):
    """In their order: neither a block without an entry nor an entry without a block."""
    shown = [block.first for block in documents.blocks(page)]
    entries = TABLE.get(documents.name_of(page), [])
    assert [first.startswith(start) for first, (start, _) in zip(shown, entries, strict=True)] == [True] * len(shown)


def test_the_table_has_no_page_that_is_gone():
    assert TABLE.keys() <= {documents.name_of(page) for page in documents.PAGES}


@pytest.mark.parametrize("page", documents.PAGES, ids=documents.name_of)
def test_what_is_run_is_a_shell_block(page):
    for block, (_, how) in zip(documents.blocks(page), TABLE.get(documents.name_of(page), []), strict=True):
        assert not isinstance(how, Run) or block.language == "sh", block.first


@pytest.fixture(scope="module")
def cache(native, program, tmp_path_factory):
    """A cache with nobody else's farm, and with what takes minutes to build."""
    return labs.cache(tmp_path_factory.mktemp("cache"), native)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with registries.running(tmp_path_factory.mktemp("registry")) as running:
        yield running.host


RUNNABLE = [page for page, entries in TABLE.items() if any(isinstance(how, Run) for _, how in entries)]
# Two workers share them: README.md and the page about tuning are as long as all others.
SHARED = [
    pytest.param(
        page,
        marks=[
            pytest.mark.xdist_group("documents, " + ("long" if page in LONG else "others")),
            *([pytest.mark.nightly] if page in NIGHTLY else []),
        ],
    )
    for page in RUNNABLE
]
SHARED += [
    pytest.param(page, marks=pytest.mark.nightly, id=f"all of {page}")
    for page in RUNNABLE
    if any(isinstance(how, Run) and how.nightly for _, how in TABLE[page])
]


@pytest.mark.parametrize("page", SHARED)
def test_the_blocks_of_a_page_run(page, cache, registry, tmp_path, request):
    """In their order, in one folder, by a reader who has nothing yet."""
    is_nightly = request.node.get_closest_marker("nightly") is not None
    with desks.open_desk(tmp_path, cache) as desk:
        for block, (_, how) in zip(documents.blocks(documents.ROOT / page), TABLE[page], strict=True):
            if isinstance(how, Written):
                text = block.text
                for pattern, new in how.replace.items():
                    text = re.sub(pattern, new, text)
                (desk.folder / how.path).write_text(desk.translated(text))
            elif isinstance(how, Run):
                script = desk.translated(how.script(block, is_nightly=is_nightly)).replace("REGISTRY", registry)
                done = desk.run(script.replace("DEVICE/", f"{desk.device}/"))
                assert done.returncode == 0, f"{page}: {block.first}\n{script}\n{done.stdout[-5000:]}"
