"""Code of suites imports from the folders that its user named, in every sandbox for programs, and reads nothing else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.code_calls import CodeCall, CodeResult, CodeSandbox
from gradeloop.sandbox.execution import SandboxError
from gradeloop.sandbox.programs import Bubblewrap, Landlock

CANARY = "canary-93ac"


@pytest.fixture(params=["bubblewrap", "landlock"])
def choice(request: pytest.FixtureRequest) -> SandboxChoice:
    """Return one sandbox for programs."""
    box = Bubblewrap() if request.param == "bubblewrap" else Landlock()
    try:
        box.run("pass")
    except SandboxError as error:
        pytest.skip(str(error))
    return SandboxChoice(None, box, None, ())


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


NEIGHBOURS = {
    "helper.py": "N = 3\n",
    "helper.js": "exports.N = 3;\n",
    "checks/near.py": "N = 4\n",
    "checks/near.mjs": "export const N = 4;\n",
    "node_modules/pad/package.json": '{"name": "pad", "main": "index.js"}',
    "node_modules/pad/index.js": "module.exports = (text) => text.padStart(5);\n",
}

FILES = {
    "checks/whole.py": ("import helper, near\ndef get_assert(output, context):\n    return helper.N + near.N\n", 7),
    "checks/require.js": ("const pad = require('pad');\nmodule.exports = (output) => require('../helper').N + pad(output).length;\n", 8),
    "checks/import.mjs": (
        "import pad from 'pad';\nimport { N } from './near.mjs';\nexport default (output) => N + pad(output).length;\n",
        9,
    ),
    "checks/module.js": ("import { N } from './near.mjs';\nexport default () => N;\n", 4),
    "checks/place.js": ("module.exports = () => __dirname.endsWith('/checks') && __filename.endsWith('place.js');\n", True),
}


def call(file: str, code: str) -> CodeCall:
    python = file.endswith(".py")
    return CodeCall("python" if python else "javascript", code, ("hey", {}), file=file, function="get_assert" if python else "")


def inline(code: str) -> CodeCall:
    return CodeCall("python" if code.startswith("return") or "import" in code else "javascript", code, ("hey", {}))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    folder = tmp_path / "suite"
    write(folder, NEIGHBOURS | {name: code for name, (code, _) in FILES.items()})
    return folder


def test_files_import_what_lies_beside_them_and_packages(choice: SandboxChoice, suite: Path) -> None:
    box = CodeSandbox(lambda: choice, imports=(suite,))
    calls = [call(name, code) for name, (code, _) in FILES.items()]

    assert box.call(calls) == [CodeResult(value=value) for _, value in FILES.values()]


def test_inline_code_imports_from_the_suites_folder(choice: SandboxChoice, suite: Path) -> None:
    box = CodeSandbox(lambda: choice, imports=(suite,))

    assert box.call([inline("import helper\nreturn helper.N"), inline("require('./helper').N")]) == [CodeResult(value=3)] * 2


def test_modules_of_one_name_in_two_folders_are_told_apart(choice: SandboxChoice, suite: Path) -> None:
    code = "import near\ndef get_assert(output, context):\n    return near.N\n"
    write(suite, {"more/near.py": "N = 5\n", "more/a.py": code, "checks/a.py": code})
    box = CodeSandbox(lambda: choice, imports=(suite,))

    assert box.call([call(f"{folder}/a.py", code) for folder in ("checks", "more", "checks")]) == [CodeResult(value=n) for n in (4, 5, 4)]


@pytest.mark.parametrize(
    ("file", "code", "missing", "cure"),
    [
        ("a.py", "import absent\ndef get_assert(output, context): pass", "No module named 'absent'", "--imports, or put absent.py into {}"),
        ("a.js", "module.exports = () => require('absent')", "Cannot find module 'absent'", "run `npm install` for it in {}, or name the "),
        ("a.mjs", "import a from 'absent';\nexport default a;", "Cannot find package 'absent'", "run `npm install` for it in {}, or name "),
        ("a.js", "module.exports = () => require('./absent')", "Cannot find module './absent'", "put it beside a.js in {}, or name the "),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_cure(choice: SandboxChoice, suite: Path, file: str, code: str, missing: str, cure: str) -> None:
    write(suite, {file: code})
    (ended,) = CodeSandbox(lambda: choice, imports=(suite,)).call([call(file, code)])

    assert missing in (ended.error or "")
    assert cure.format(suite) in (ended.error or "")
    assert "Require stack" not in (ended.error or "")


@pytest.mark.parametrize("copied", [False, True])
def test_a_worker_without_an_equal_copy_of_the_file_says_what_it_lacks(choice: SandboxChoice, suite: Path, copied: bool) -> None:
    code = FILES["checks/whole.py"][0] + "# newer\n"
    (ended,) = CodeSandbox(lambda: choice, imports=(suite,) if copied else ()).call([call("checks/whole.py", code)])

    assert "No module named '" in (ended.error or "")
    cure = f"or put near.py into {suite}" if copied else "name a copy of the suite's on the worker in [sandbox] imports"
    assert cure in (ended.error or "")


def test_nothing_else_becomes_readable(choice: SandboxChoice, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_CANARY", CANARY)
    outside = suite.parent / "outside"
    write(suite, {".env": CANARY, ".git/config": CANARY, ".venv/lib/key": CANARY})
    write(outside, {"key": CANARY, "module.py": f"KEY = {CANARY!r}\n"})
    links = {"link.py": outside / "module.py", "checks/link": outside / "key", "linked": outside, "passwd": Path("/etc/passwd")}
    for name, target in links.items():
        (suite / name).symlink_to(target)
    wanted = [".env", ".git/config", ".venv/lib/key", "../outside/key", "link.py", "checks/link", "linked/key", "passwd"]
    paths = [*(str(suite / name) for name in wanted), "/etc/passwd", "/etc/hostname", f"/proc/{os.getpid()}/environ"]
    home = [str(path) for path in Path.home().iterdir() if path.is_file()][:3]
    attempts = [f"return open({path!r}).read()" for path in (*paths, *home)]
    attempts += [f"require('fs').readFileSync({path!r}, 'utf8')" for path in (*paths, *home)]
    attempts += ["import link\nreturn link.KEY", "require('./link.py')", f"import os\nreturn os.listdir({str(outside)!r})"]
    attempts += ["import os\nreturn os.environ['GRADELOOP_CANARY']"]
    attempts += [f"return open({str(suite / name)!r}, 'w').write('x')" for name in ("new", "helper.py", ".git/new", ".env")]
    box = CodeSandbox(lambda: choice, imports=(suite,))

    reached = [(code, result) for code, result in zip(attempts, box.call(list(map(inline, attempts))), strict=True) if not result.error]

    assert reached == []
    assert [(suite / name).read_text() for name in ("helper.py", ".env")] == ["N = 3\n", CANARY]
    assert not (suite / "new").exists()


def test_what_is_hidden_in_a_suites_folder_stays_so_where_its_parent_is_named_too(choice: SandboxChoice, suite: Path) -> None:
    write(suite, {".env": CANARY})
    write(suite.parent, {"shared.py": "N = 6\n", ".env": CANARY})
    box = CodeSandbox(lambda: choice, imports=(suite, suite.parent))
    hidden = [inline(f"return open({str(folder / '.env')!r}).read()") for folder in (suite, suite.parent)]

    results = box.call([inline("import shared\nreturn shared.N"), *hidden])

    assert results[0].value == 6
    assert all(result.error for result in results[1:])


def test_packages_of_a_named_folder_are_found(choice: SandboxChoice, tmp_path: Path) -> None:
    write(tmp_path / "suite", {"a.js": "module.exports = (output) => require('pad')(output).length;\n"})
    write(tmp_path / "packages", {name: text for name, text in NEIGHBOURS.items() if name.startswith("node_modules")})
    box = CodeSandbox(lambda: choice, imports=(tmp_path / "suite", tmp_path / "packages"))

    assert box.call([call("a.js", (tmp_path / "suite/a.js").read_text())]) == [CodeResult(value=5)]


def test_a_named_virtual_environment_runs_code_with_its_packages(choice: SandboxChoice, suite: Path) -> None:
    environment = suite / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    write(packages, {"installed.py": "import helper\nN = 7 + helper.N\n"})
    code = "import installed, sys\nreturn [installed.N, sys.prefix]"

    named, unnamed = (CodeSandbox(lambda: choice, imports=imports).call([inline(code)])[0] for imports in ((suite, environment), (suite,)))
    (missing,) = CodeSandbox(lambda: choice, imports=(suite, environment)).call([inline("import absent\nreturn 1")])

    assert named == CodeResult(value=[10, str(environment)])
    assert "No module named 'installed'" in (unnamed.error or "")
    assert f"install its package with `{environment}/bin/python -m pip install`" in (missing.error or "")


def test_a_folder_that_only_its_owner_can_enter_is_imported_from(choice: SandboxChoice) -> None:
    with tempfile.TemporaryDirectory() as closed:
        write(Path(closed), {"helper.js": "exports.N = 3;\n"})

        assert CodeSandbox(lambda: choice, imports=(Path(closed),)).call([inline("require('./helper').N")]) == [CodeResult(value=3)]


def test_a_file_that_cannot_be_loaded_is_refused_and_one_that_can_is_loaded_once(choice: SandboxChoice, suite: Path) -> None:
    box = CodeSandbox(lambda: choice, imports=(suite,))
    whole = [call(name, code) for name, (code, _) in FILES.items()]
    broken = {
        "a.py": (
            "import absent\ndef get_assert(output, context): pass",
            "a.py cannot be loaded: ModuleNotFoundError: No module named 'absent'",
        ),
        "b.py": ("def other(output, context): pass", "b.py cannot be loaded: LookupError: b.py has no function get_assert"),
        "c.js": ("require('absent'); module.exports = () => 1", "c.js cannot be loaded: Error: Cannot find module 'absent'"),
        "d.mjs": ("export const a = 1", "d.mjs cannot be loaded: Error: d.mjs exports no function"),
    }

    box.refuse_unloadable([*whole, inline("1 / 0")])

    assert len(box._loaded) == len(FILES)
    for name, (code, why) in broken.items():
        write(suite, {name: code})
        with pytest.raises(SandboxError) as refused:
            box.refuse_unloadable([*whole, call(name, code)])
        assert why in str(refused.value)
