"""What a draft may try: hostile programs, and attacks on the interpreter. `SECRET`, `FOLDER`, `PORT`, `SOCKET`, `WORKER` are put in front.

A canary stands at every goal: a word that no sandbox may give away, a file that nobody may write, a socket that nobody may reach.
"""

HOSTILE: dict[str, str] = {
    "endless": "while True:\n    pass",
    "endless, deaf to exceptions": "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    "deaf to signals": (
        "import signal\nfor number in range(1, 32):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass"
    ),
    "asleep": "import time\ntime.sleep(3600)",
    "fork storm": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "thread storm": (
        "import threading, time\nwhile True:\n    try:\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n    except Exception:\n        pass"
    ),
    "memory at once": "x = bytearray(64 * 1024 ** 3)",
    "memory bit by bit": "x = []\nwhile True:\n    x.append('y' * 1_000_000)",
    "memory doubled": "x = 'y' * 1000\nwhile True:\n    x = x + x",
    "a secret file": "print(open(SECRET).read())",
    "a secret file by descriptor": "import os\nfd = os.open(SECRET, os.O_RDONLY)\nprint(os.read(fd, 1000))",
    "a link to a secret": "import os\nos.symlink(SECRET, 'link')\nprint(open('link').read())",
    "a secret made its own": "import os\nos.link(SECRET, 'mine')\nprint(open('mine').read())",
    "all of the home": "import os\nfor at, _, files in os.walk('/root'):\n    print(at, files)\nprint(open('/etc/shadow').read())",
    "the parent's environment": "import os\nprint(open(f'/proc/{os.getppid()}/environ').read())",
    "everybody's environment": (
        "import os\nfor each in os.listdir('/proc'):\n    try:\n        print(open(f'/proc/{each}/environ').read())\n"
        "    except OSError:\n        pass\nprint(open(f'/proc/{WORKER}/environ').read())"
    ),
    "its own environment": "import os\nprint(dict(os.environ))",
    "the parent's memory": (
        "import os\nfor line in open(f'/proc/{WORKER}/maps'):\n    first, last = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "    with open(f'/proc/{WORKER}/mem', 'rb') as memory:\n        memory.seek(first)\n        print(memory.read(last - first))"
    ),
    "the network": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2).sendall(b'here I am')",
    "the network by datagram": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'here I am', ('127.0.0.1', PORT))",
    "a service on the network": "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\ns.accept()",
    "a socket in the file system": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(SOCKET)\ns.sendall(b'here I am')",
    "a datagram out of a pair": (
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'here I am', SOCKET + '.datagram')"
    ),
    "endless output": "while True:\n    print('x' * 10_000)",
    "endless errors": "import sys\nwhile True:\n    sys.stderr.write('x' * 10_000)",
    "an exception of 10 MB": "raise ValueError('x' * 10_000_000)",
    "the parent killed": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(WORKER, signal.SIGKILL)",
    "everybody killed": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "the worker's group killed": "import os, signal\nos.killpg(os.getpgid(WORKER), signal.SIGKILL)",
    "the worker killed by its limits": "import resource\nresource.prlimit(WORKER, resource.RLIMIT_CPU, (1, 1))",
    "the worker killed by a descriptor's signal": (
        "import fcntl, os, signal\nr, w = os.pipe()\nfcntl.fcntl(r, 10, signal.SIGKILL)\nfcntl.fcntl(r, 8, WORKER)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nos.write(w, b'x')"
    ),
    "the worker traced": "import ctypes\nif ctypes.CDLL(None).ptrace(16, WORKER, 0, 0):\n    raise OSError('no')\nprint('traced')",
    "a full disk": "with open('big', 'wb') as file:\n    while True:\n        file.write(b'x' * 1_000_000)",
    "a full disk of many files": (
        "n = 0\nwhile True:\n    n += 1\n    with open(f'file{n}', 'wb') as file:\n        file.write(b'x' * 1_000_000)"
    ),
    "a disk full of nothing": "n = 0\nwhile True:\n    n += 1\n    open(f'file{n}', 'wb').close()",
    "folders without end": "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')",
    "folders without rights": "import os\nos.mkdir('locked')\nos.mkdir('locked/in', 0)\nopen(FOLDER + '/written', 'w').write('x')",
    "a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(3)\n"
        "        open(FOLDER + '/written', 'w').write('x')\n    os._exit(0)"
    ),
    "a file outside": "open(FOLDER + '/written', 'w').write('x')",
    "a file of others emptied": "import os\nos.truncate(FOLDER + '/precious', 0)",
    "a file of others locked away": "import os\nos.chmod(FOLDER + '/precious', 0)\nos.utime(FOLDER + '/precious', (0, 0))",
    "shared memory": "import ctypes\nif ctypes.CDLL(None).shmget(0x67726164, 4096, 0o1600) < 0:\n    raise OSError('no')\nprint('shared')",
    "a big integer": "x = 7 ** (10 ** 8)\nprint(len(str(x)))",
    "a regular expression": "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')",
    "a sort that compares for ever": "x = list(range(10 ** 6))\nwhile True:\n    x.sort(key=lambda v: -v)",
}

INTERPRETER: dict[str, str] = {
    "subclasses": (
        "found = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close']\n"
        "print(found[0].__init__.__globals__['popen']('cat ' + SECRET).read())"
    ),
    "builtins import": "print(__builtins__['__import__']('os').popen('cat ' + SECRET).read())",
    "import by name": "print(__import__('os').listdir(FOLDER))",
    "importlib": "import importlib\nprint(importlib.import_module('os').listdir(FOLDER))",
    "a loader": "import importlib.machinery\nprint(importlib.machinery.SourceFileLoader('x', SECRET).get_data(SECRET))",
    "eval": "print(eval('open(SECRET).read()'))",
    "exec": "exec('print(open(SECRET).read())')",
    "compile": "print(eval(compile('open(SECRET).read()', 'x', 'eval')))",
    "a forged code object": "def f():\n    return 1\nf.__code__ = (lambda: open(SECRET).read()).__code__\nprint(f())",
    "a frame": "import sys\nframe = sys._getframe()\nwhile frame:\n    print(frame.f_globals)\n    frame = frame.f_back",
    "a traceback": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(e.__traceback__.tb_frame.f_builtins['open'](SECRET).read())",
    "a format string": "print('{0.__class__.__init__.__globals__}'.format(type('X', (), {})()))\nprint(open(SECRET).read())",
    "a generator's frame": "g = (x for x in [1])\nprint(g.gi_frame.f_builtins['open'](SECRET).read())",
    "garbage": "import gc\nprint([o for o in gc.get_objects() if 'canary' in str(o).lower()][:3])",
    "ctypes": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.system(b'cat ' + SECRET.encode())\nprint(open(SECRET).read())",
    "memory by address": "import ctypes\nprint(ctypes.string_at(id(object()) - 4096, 1 << 20))",
    "a null pointer": "import ctypes\nctypes.string_at(0)",
    "pickle": (
        "import pickle\nclass P:\n    def __reduce__(self):\n        import os\n        return os.system, ('cat ' + SECRET,)\n"
        "pickle.loads(pickle.dumps(P()))\nprint(open(SECRET).read())"
    ),
    "marshal": "import marshal\nexec(marshal.loads(marshal.dumps(compile('print(open(SECRET).read())', 'x', 'exec'))))",
    "a shell": "import subprocess\nprint(subprocess.check_output(['cat', SECRET]))",
    "a shell by asyncio": (
        "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_shell('cat ' + SECRET, stdout=-1)\n"
        "    print(await p.communicate())\nasyncio.run(main())"
    ),
    "another interpreter": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', f'print(open({SECRET!r}).read())'])",
    "a terminal": "import pty\npty.spawn(['cat', SECRET])",
    "a file by URL": "import urllib.request\nprint(urllib.request.urlopen('file://' + SECRET).read())",
    "a database": "import sqlite3\nsqlite3.connect(FOLDER + '/written').execute('create table t (x)')",
    "a map": "import mmap, os\nprint(mmap.mmap(os.open(SECRET, os.O_RDONLY), 0, prot=mmap.PROT_READ)[:])",
    "a line cache": "import linecache\nprint(linecache.getlines(SECRET) or open(SECRET).read())",
    "a warning's file": "import faulthandler\nfaulthandler.dump_traceback(open(FOLDER + '/written', 'w'))",
    "a module search path": "import sys\nsys.path.insert(0, FOLDER)\nimport precious\nprint(precious.__doc__)",
    "no end of depth": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(n):\n    return f(n + 1)\nf(0)",
    "a deep expression": "eval('(' * 100_000 + ')' * 100_000)",
    "a name that calls": (
        "class M(type):\n    def __getattr__(cls, name):\n        return open(SECRET).read()\n"
        "class A(metaclass=M):\n    pass\nprint(A.anything)"
    ),
    "a last word": "class D:\n    def __del__(self):\n        print(open(SECRET).read())\nd = D()\ndel d\nopen(SECRET)",
    "a hook at exit": "import atexit\natexit.register(lambda: print(open(SECRET).read()))\nopen(SECRET)",
}
"""What reaches for the interpreter behind the code. In a sandbox for programs most of it may run; nothing of it may get anywhere."""
