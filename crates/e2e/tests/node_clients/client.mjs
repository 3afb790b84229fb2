// The main job as the official MCP SDKs for TypeScript see it: `client.mjs v1|v2 MODULES stdio SERVER ARGUMENT…` or
// `client.mjs v1|v2 MODULES http URL`. Run by the end-to-end tests; ends with status 0 only when every step was right.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [generation, modules, way, ...rest] = process.argv.slice(2);
const require = createRequire(`${modules}/x.js`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const KINDS = {
  v1: ['@modelcontextprotocol/sdk/client/index.js', '@modelcontextprotocol/sdk/client/stdio.js', '@modelcontextprotocol/sdk/client/streamableHttp.js', {}],
  v2: ['@modelcontextprotocol/client', '@modelcontextprotocol/client/stdio', '@modelcontextprotocol/client', { versionNegotiation: { mode: 'auto' } }],
};
const [main, stdio, http, options] = KINDS[generation];

function check(what, holds, detail) {
  console.log(`${holds ? 'ok' : 'FAILED'}: ${what}`);
  if (!holds) {
    console.error(JSON.stringify(detail));
    process.exit(1);
  }
}
const text = (result) => result.content.filter((block) => block.type === 'text').map((block) => block.text).join('\n');
const execution = (result) => result._meta['sandcell/execution'];

const { Client } = await load(main);
const client = new Client({ name: 'typescript-client', version: '1' }, options);
if (way === 'stdio') {
  const { StdioClientTransport } = await load(stdio);
  await client.connect(new StdioClientTransport({ command: rest[0], args: rest.slice(1), env: process.env, stderr: 'ignore' }));
} else {
  const { StreamableHTTPClientTransport } = await load(http);
  await client.connect(new StreamableHTTPClientTransport(new URL(rest[0])));
}
const call = (name, args, ...more) => client.callTool({ name, arguments: args }, ...more);

check('the server is named', client.getServerVersion().name === 'sandcell', client.getServerVersion());
check('and says how it is used', client.getInstructions().includes('execute_code'), client.getInstructions());
if (generation === 'v2') {
  const version = client.getNegotiatedProtocolVersion();
  check('in the newest protocol', version === '2026-07-28', version);
}
const { tools } = await client.listTools();
check('the tools', tools.some((tool) => tool.name === 'execute_code') && tools.every((tool) => tool.description), tools);
const first = await call('execute_code', { code: "x = 20\nprint('made')" });
check('code runs', text(first).startsWith('made'), first);
const second = await call('execute_code', { code: 'x += 1\nx * 2' });
check('variables stay', text(second).includes('42'), second);
check('in one sandbox', execution(first).sandbox_id === execution(second).sandbox_id, second);
const failed = await call('execute_code', { code: '1 / 0' });
check('an exception is a normal result', !failed.isError && text(failed).includes('ZeroDivisionError'), failed);
// Checked by the SDK against the declared output schema.
const status = await call('get_sandbox_status', {});
check('the sandbox is there', text(status).includes(execution(first).sandbox_id), status);
const path = 'note.txt';
await call('write_file', { path, content: 'Grüße' });
const read = await client.readResource({ uri: `sandcell://${execution(first).sandbox_id}/home/user/${path}` });
check('a file is a resource', read.contents[0].text === 'Grüße', read);
const { prompts } = await client.listPrompts();
check('prompts are offered', prompts.length === 2, prompts);
const wrong = await call('close_sandbox', { sandbox_id: 'sbnone' });
check('a mistake is a tool error that says what to do', wrong.isError && text(wrong).includes('What to do'), wrong);
const taken = new AbortController();
const running = call('execute_code', { code: 'import time\ntime.sleep(60)', timeout_s: 60 }, ...(generation === 'v1' ? [undefined] : []), { signal: taken.signal });
setTimeout(() => taken.abort(), 300);
let ended = 'with an answer';
try { await running; } catch (error) { ended = `${error}`; }
check('a call can be taken back', ended !== 'with an answer', ended);
const after = await call('execute_code', { code: 'print(x)' });
check('and costs no variables', text(after).includes('21'), after);
await client.close();
console.log('all steps passed');
process.exit(0);
