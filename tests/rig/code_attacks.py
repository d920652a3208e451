"""What an assertion in JavaScript may try. `SECRET`, `FOLDER`, `PORT`, `SOCKET`, `WORKER` are put in front, as for those in Python."""

JAVASCRIPT: dict[str, str] = {
    "endless": "while (true) {}",
    "endless, deaf to exceptions": "while (true) { try { while (true) {} } catch {} }",
    "endless promises": "const again = () => Promise.resolve().then(again);\nawait again();\nreturn true;",
    "a promise that never ends": "await new Promise(() => {});\nreturn true;",
    "asleep": "await new Promise((done) => setTimeout(done, 3600000));\nreturn true;",
    "asleep in a lock": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);",
    "memory at once": "const x = new Uint8Array(64 * 1024 ** 3);\nreturn x.length;",
    "memory bit by bit": "const x = [];\nwhile (true) x.push('y'.repeat(1000000) + x.length);",
    "memory doubled": "let x = 'y'.repeat(1000);\nwhile (true) x = x + x + Math.random();",
    "memory in objects": "let x = {};\nwhile (true) x = {x, y: new Array(1000).fill(0)};",
    "depth without end": "const f = () => f() + 1;\nreturn f();",
    "a regular expression": "return /(a+)+$/.test('a'.repeat(60) + 'b') ? undefined : undefined;",
    "a big integer": "return Number((7n ** (10n ** 9n)) % 2n) > 5;",
    "a secret file": "const text = require('fs').readFileSync(SECRET, 'utf8');\nreturn {pass: true, reason: text};",
    "a secret file by import": "const fs = await import('node:fs');\nreturn {pass: true, reason: fs.readFileSync(SECRET, 'utf8')};",
    "a secret file by its main module": "return {pass: true, reason: process.mainModule.require('fs').readFileSync(SECRET, 'utf8')};",
    "a secret file by a binding": "const fs = process.binding('fs');\nreturn {pass: true, reason: String(fs.readFileUtf8(SECRET, 0))};",
    "a secret as a module": "return {pass: true, reason: String(require(SECRET))};",
    "a link to a secret": "const fs = require('fs');\nfs.symlinkSync(SECRET, 'link');\n"
    "return {pass: true, reason: fs.readFileSync('link', 'utf8')};",
    "a secret made its own": "const fs = require('fs');\nfs.linkSync(SECRET, 'mine');\n"
    "return {pass: true, reason: fs.readFileSync('mine', 'utf8')};",
    "all of the home": "return {pass: true, reason: require('fs').readdirSync('/root').join() + "
    "require('fs').readFileSync('/etc/shadow')};",
    "the parent's environment": "return {pass: true, reason: require('fs').readFileSync(`/proc/${process.ppid}/environ`, 'utf8')};",
    "the worker's environment": "return {pass: true, reason: require('fs').readFileSync(`/proc/${WORKER}/environ`, 'utf8')};",
    "a variable of the worker": "if (process.env.GRADELOOP_CANARY) return {pass: true, reason: process.env.GRADELOOP_CANARY};\n"
    "throw new Error('none');",
    "the worker's memory": "const fd = require('fs').openSync(`/proc/${WORKER}/mem`);\nreturn fd > 0;",
    "a child process": "return require('child_process').execSync('cat ' + SECRET).length > 0;",
    "a child in the background": "require('child_process').spawn('sh', ['-c', `echo x > ${FOLDER}/written`], {detached: true}).unref();\n"
    "await new Promise((done) => setTimeout(done, 300));\nthrow new Error('begun');",
    "a worker thread": "const {Worker} = require('worker_threads');\n"
    "await new Promise((done, fail) => new Worker(`require('fs').writeFileSync('"
    "' + require('worker_threads').workerData, 'x')`, {eval: true, workerData: FOLDER + '/written'}).on('error', fail).on('exit', done));\n"
    "throw new Error('ended');",
    "the network": "await new Promise((done, fail) => require('net').connect(PORT, '127.0.0.1', done).on('error', fail));\nreturn true;",
    "the network by fetch": "await fetch(`http://127.0.0.1:${PORT}/`);\nreturn true;",
    "the network by datagram": "await new Promise((done, fail) => { const s = require('dgram').createSocket('udp4');\n"
    "s.on('error', fail); s.send('here', PORT, '127.0.0.1', (e) => (e ? fail(e) : done())); });\nreturn true;",
    "a service on the network": "await new Promise((done, fail) => require('net').createServer().listen(0, done).on('error', fail));\n"
    "return true;",
    "a socket in the file system": "await new Promise((done, fail) => require('net').connect(SOCKET, done).on('error', fail));\n"
    "return true;",
    "a file outside": "require('fs').writeFileSync(FOLDER + '/written', 'x');\nreturn true;",
    "a file of others emptied": "require('fs').truncateSync(FOLDER + '/precious');\nreturn true;",
    "a file of others locked away": "require('fs').chmodSync(FOLDER + '/precious', 0);  // is taken in silence\nreturn undefined;",
    "a full disk": "const fs = require('fs');\nwhile (true) fs.appendFileSync('big', 'x'.repeat(1000000));",
    "many files": "const fs = require('fs');\nfor (let n = 0; ; n++) fs.writeFileSync(`file${n}`, 'x'.repeat(100000));",
    "the worker killed": "process.kill(WORKER, 'SIGKILL');\nreturn true;",
    "its parent killed": "process.kill(process.ppid, 'SIGKILL');\nthrow new Error('sent');",
    "its process left": "process.exit(0);",
    "its process aborted": "process.abort();",
    "endless output": "while (true) require('fs').writeSync(1, 'x'.repeat(100000));",
    "endless errors": "while (true) require('fs').writeSync(2, 'x'.repeat(100000));",
    "a value of 10 MB": "return {pass: true, reason: 'x'.repeat(10000000)};",
    "an exception of 10 MB": "throw new Error('x'.repeat(10000000));",
    "an exception that cannot be shown": "throw {get name() { throw 1; }, toString() { throw 2; }};",
    "the next result said before it": "const fs = require('fs');\nconst {mark} = JSON.parse(fs.readFileSync('calls.json', 'utf8'));\n"
    'fs.writeSync(1, `${mark} {"at": 0, "value": false}\\n${mark} {"at": 1, "value": true}\\n`);\nprocess.exit(0);',
    "JSON written otherwise": "JSON.stringify = () => 'true';\nthrow new Error('done');",
    "a value that answers otherwise": "return {toJSON() { throw new Error('no'); }};",
}
