"""Drafts that are wrong, and forge the report of the suite that would say so."""

WRONG = "def double(x):\n    return 0\n\n\ndef zero():\n    return 0\n"
"""The module that is judged: one test of the suite passes, one fails."""

SUITE = {
    "test_double.py": "from draft import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
    "test_zero.py": "from draft import zero\n\n\ndef test_zero():\n    assert zero() == 0\n",
}

UNITTEST = {
    "test_double.py": (
        "import unittest\n\nfrom draft import double, zero\n\n\nclass TestDouble(unittest.TestCase):\n"
        "    def test_double(self):\n        self.assertEqual(double(2), 4)\n\n"
        "    def test_zero(self):\n        self.assertEqual(zero(), 0)\n"
    )
}
"""The same suite in unittest's words."""

_SAID = """
import json, os

def say(code):
    report = {"passed": 2, "skipped": 0, "failed": {}, "errors": {}, "exit": 0}
    for fd in range(256):
        try:
            os.write(fd, (code + json.dumps(report) + code + "\\n").encode())
        except OSError:
            pass
    os._exit(0)
"""
"""Says to every descriptor that all tests have passed, after a code, and leaves."""

_SESSION = """
import gc, pytest

def session():
    return next(found for found in gc.get_objects() if isinstance(found, pytest.Session))
"""
"""Finds pytest's session in memory."""

_PASSED = """
import _pytest.reports
made = _pytest.reports.TestReport.from_item_and_call.__func__
"""

FORGERIES = {
    "reads the runner in its own folder": _SAID
    + """
import re
for folder, _, names in os.walk("."):
    for name in names:
        for code in re.findall("[0-9a-f]{64}", open(os.path.join(folder, name), errors="replace").read()):
            say(code)
""",
    "reads the runner's arguments and __main__": _SAID
    + """
import re, sys, __main__
for code in re.findall("[0-9a-f]{32,}", repr(vars(__main__)) + repr(sys.orig_argv) + repr(dict(os.environ))):
    say(code)
""",
    "walks the frames for a code": _SAID
    + """
import re, sys
frame = sys._getframe()
while frame:
    for code in re.findall("[0-9a-f]{64}", repr(frame.f_locals) + repr(frame.f_code.co_consts)):
        say(code)
    frame = frame.f_back
""",
    "walks the frames for a descriptor and a function that writes": """
import os, sys
frame = sys._getframe()
while frame:
    names = frame.f_locals
    if "out" in names and "nonce" in names:
        code = names["nonce"]
        os.write(names["out"], (code + '{"passed": 2, "skipped": 0, "failed": {}, "errors": {}, "exit": 0}' + code).encode())
        os._exit(0)
    frame = frame.f_back
""",
    "writes a conftest": """
hook = '''
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    result = yield
    result.get_result().outcome = "passed"
'''
import os
for folder in (".", "..", os.path.dirname(__file__)):
    open(os.path.join(folder, "conftest.py"), "w").write(hook)
""",
    "registers a plugin": _SESSION
    + """
class Plugin:
    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        result = yield
        result.get_result().outcome = "passed"

session().config.pluginmanager.register(Plugin())
""",
    "writes a sitecustomize and starts anew": """
import os, sys
for name in ("sitecustomize.py", "usercustomize.py"):
    open(name, "w").write("import sys; sys.exit = lambda code=0: None")
os.environ["PYTHONPATH"] = os.getcwd()
os.execv(sys.executable, [sys.executable, "-c", "print('2 passed')"])
""",
    "patches the report": _PASSED
    + """
def passed(kind, item, call):
    report = made(kind, item, call)
    report.outcome = "passed"
    return report

_pytest.reports.TestReport.from_item_and_call = classmethod(passed)
""",
    "patches the report of one test": _PASSED
    + """
def passed(kind, item, call):
    report = made(kind, item, call)
    if report.nodeid.endswith("::test_double"):
        report.outcome = "passed"
    return report

_pytest.reports.TestReport.from_item_and_call = classmethod(passed)
""",
    "patches the call": """
import _pytest.runner
from_call = _pytest.runner.CallInfo.from_call.__func__

def calm(kind, func, when, reraise=None):
    info = from_call(kind, func, when, reraise)
    info.excinfo = None
    return info

_pytest.runner.CallInfo.from_call = classmethod(calm)
""",
    "patches how a test is run": """
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
""",
    "patches how one test is run": """
import _pytest.python
run = _pytest.python.Function.runtest
_pytest.python.Function.runtest = lambda self: None if self.name == "test_double" else run(self)
""",
    "patches the exit codes": """
import pytest, _pytest.main
_pytest.main.ExitCode.TESTS_FAILED._value_ = 0
_pytest.main.Session.testsfailed = property(lambda self: 0, lambda self, value: None)
pytest.ExitCode.TESTS_FAILED = 0
""",
    "waits for the exit": _SAID + "\nimport atexit\natexit.register(say, '')\nraise SystemExit(0)\n",
    "leaves": "import os\nos._exit(0)\n",
    "interrupts": "raise KeyboardInterrupt\n",
    "ends the session": "import pytest\npytest.exit('done', returncode=0)\n",
    "writes the report into files": """
import json, os
for name in ("report.json", "results.json", "results.xml", ".report", "run_suite.py", "request.json"):
    for folder in (".", ".."):
        open(os.path.join(folder, name), "w").write(json.dumps({"passed": 2, "failed": {}, "errors": {}, "exit": 0}))
os._exit(0)
""",
    "replaces the test's module": """
import sys, types
fake = types.ModuleType("test_double")
fake.__file__ = sys.modules["test_double"].__file__ if "test_double" in sys.modules else __file__
def test_double():
    pass
fake.test_double = test_double
sys.modules["test_double"] = fake
""",
    "replaces pytest": """
import sys, types
import _pytest.runner
fake = types.ModuleType("_pytest.runner")
vars(fake).update(vars(_pytest.runner), runtestprotocol=lambda *a, **k: [])
sys.modules["_pytest.runner"] = fake
_pytest.runner.pytest_runtest_call.__code__ = (lambda item: None).__code__
""",
    "hunts for the reporter": """
import gc
def spared(*_, **__):
    pass
for found in gc.get_objects():
    if type(found).__module__ in ("__main__", "run_suite") and not isinstance(found, type):
        for name in dir(type(found)):
            if name.startswith("pytest_runtest"):
                setattr(type(found), name, spared)
for found in gc.get_objects():
    if isinstance(found, dict) and {"passed", "failed", "errors"} <= set(map(str, found)):
        found["failed"] = type("Never", (dict,), {"__setitem__": lambda *_: None})()
        found["passed"] = 2
""",
    "wraps the reporter's hooks": _SESSION
    + """
for plugin in session().config.pluginmanager.get_plugins():
    hook = getattr(plugin, "pytest_runtest_logreport", None)
    if type(plugin).__module__ == "__main__":
        for calls in (session().config.hook.pytest_runtest_logreport,):
            for found in calls.get_hookimpls():
                if found.plugin is plugin:
                    def kinder(report, real=found.function):
                        report.outcome = "passed"
                        return real(report)
                    found.function = kinder
""",
    "tells the reporter itself": _SESSION
    + """
import os
from _pytest.reports import TestReport
hook = session().config.hook.pytest_runtest_logreport
for name in ("test_double.py::test_double", "test_zero.py::test_zero"):
    for prefix in ("", "suite/", "work/"):
        for when in ("setup", "call", "teardown"):
            hook(report=TestReport(prefix + name, (name, 1, name), {}, "passed", None, when))
os._exit(0)
""",
    "prints a summary": """
import os, sys
for fd in (1, 2):
    os.write(fd, b"\\n============ 2 passed in 0.01s ============\\n")
print("2 passed", file=sys.__stdout__, flush=True)
os._exit(0)
""",
    "kills its parent": """
import os, signal
for process in (os.getppid(), -1, 0, os.getpid()):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(process, number)
        except OSError:
            pass
""",
    "takes the tests away": _SESSION
    + """
import threading, time
def watch(found):
    for _ in range(1000):
        found.items[:] = [item for item in found.items if item.name != "test_double"]
        time.sleep(0.0005)
threading.Thread(target=watch, args=(session(),), daemon=True).start()
def double(x):
    found = session()
    return 0
def zero():
    return 0
""",
    "deselects a test": _SESSION
    + """
class Plugin:
    def pytest_collection_modifyitems(self, session, config, items):
        items[:] = [item for item in items if item.name != "test_double"]

session().config.pluginmanager.register(Plugin())
""",
    "hollows the tests out": """
import gc, types
def hollow():
    for found in gc.get_objects():
        if isinstance(found, types.FunctionType) and found.__name__.startswith("test_"):
            found.__code__ = (lambda: None).__code__
def zero():
    hollow()
    return 0
class Later:
    def __eq__(self, other):
        hollow()
        return False
def double(x):
    hollow()
    return 0
import threading, time
def watch():
    for _ in range(300):
        hollow()
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
""",
    "makes failures skips": "import builtins, pytest\nbuiltins.AssertionError = pytest.skip.Exception\n",
    "skips the test that fails": "import pytest\n\ndef double(x):\n    pytest.skip('not today')\n",
    "skips the unittest that fails": "import unittest\n\ndef double(x):\n    raise unittest.SkipTest('not today')\n",
    "skips by another name": (
        "import pytest\n\ndef double(x):\n    exec(compile(\"import pytest; pytest.skip('not today')\", '<nowhere>', 'exec'))\n"
    ),
    "skips the module of the test that fails": """
import sys, pytest
if "test_double" in sys.modules and "test_zero" not in sys.modules:
    del sys.modules["draft"]
    pytest.skip("not today", allow_module_level=True)
""",
    "expects the failure": "import pytest\n\ndef double(x):\n    pytest.xfail('known')\n",
    "changes unittest": """
import unittest
unittest.TestCase.assertEqual = lambda *_: None
unittest.TestCase._baseAssertEqual = lambda *_: None
""",
}
"""What the drafts do, by name; each forges beside being wrong."""
