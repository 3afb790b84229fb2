// The main job as E2B's own SDK for JavaScript sees it: `e2b.mjs MODULES PACKAGE`, with the server in E2B's variables. Prints
// what it saw as one line of JSON. A package without a code interpreter runs no code.
import { createRequire } from 'node:module'

const { Sandbox } = createRequire(process.argv[2] + '/')(process.argv[3])
const runsCode = 'runCode' in Sandbox.prototype
const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { a: 'b' }, envs: { GREETING: 'hi' } })
const seen = {}
if (runsCode) {
  seen.code = (await sandbox.runCode('x = 20\nx + 1')).text
  seen.kept = (await sandbox.runCode('x * 2')).text
  seen.error = (await sandbox.runCode('1/0')).error.name
  seen.js = (await sandbox.runCode('1 + 1', { language: 'js' })).text
}
const ran = await sandbox.commands.run('echo out; echo $GREETING >&2')
seen.command = [ran.stdout, ran.stderr, ran.exitCode]
seen.failed = await sandbox.commands.run('exit 3').catch(error => error.exitCode)
await sandbox.files.write('dir/a.txt', 'héllo')
seen.read = await sandbox.files.read('dir/a.txt')
seen.list = (await sandbox.files.list('dir')).map(entry => [entry.name, entry.type, entry.size])
seen.exists = [await sandbox.files.exists('dir/a.txt'), await sandbox.files.exists('nothing')]
const bytes = new Uint8Array(3_000_000).fill(7)
await sandbox.files.write('big.bin', new Blob([bytes]))
const back = await sandbox.files.read('big.bin', { format: 'bytes' })
seen.bytes = back.length === bytes.length && back.every(byte => byte === 7)
if (runsCode) {
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  seen.context = (await sandbox.runCode('import os; os.getcwd()', { context })).text
}
const background = await sandbox.commands.run('cat', { background: true, stdin: true })
await sandbox.commands.sendStdin(background.pid, 'typed')
seen.killed = await background.kill()
seen.info = (await sandbox.getInfo()).metadata
seen.running = await sandbox.isRunning()
seen.paused = [await sandbox.pause(), (await sandbox.getInfo()).state, await sandbox.isRunning()]
const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
if (runsCode) seen.resumed = (await again.runCode('x')).text
const changes = []
const watch = await again.files.watchDir('dir', change => changes.push([change.type, change.name]))
await again.files.write('dir/b.txt', '1')
for (let i = 0; i < 100 && changes.length < 2; i++) await new Promise(resolve => setTimeout(resolve, 50))
await watch.stop()
seen.changes = changes
let said = ''
const terminal = await again.pty.create({ cols: 90, rows: 20, onData: data => { said += Buffer.from(data).toString() } })
await again.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'))
await terminal.wait()
seen.terminal = said.includes('20 90')
seen.gone = await sandbox.kill()
seen.after = await sandbox.isRunning()
console.log(JSON.stringify(seen))
