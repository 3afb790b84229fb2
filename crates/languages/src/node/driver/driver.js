// The driver of a JavaScript session: reads cells from descriptor 3, answers on descriptor 4.
//
// V8's console mode (`Runtime.evaluate` with `replMode`) evaluates the cells. It allows top-level `await`
// and redeclared `const` and `let`, and returns the value of the last expression. Everything that user code could replace
// is bound to constants here, before user code runs.
"use strict";
{
  const fs = require("fs");
  const vm = require("vm");
  const util = require("util");
  const path = require("path");
  const inspector = require("inspector");
  const { Socket } = require("net");
  const { createRequire } = require("module");
  const { writeSync, closeSync, openSync, unlinkSync, writeFileSync, ReadStream } = fs;
  const { inspect } = util;
  const { stringify, parse } = JSON;
  const { from, concat, alloc } = Buffer;
  const setTimer = setTimeout;
  const setSoon = setImmediate;
  const dropTimer = clearTimeout;
  const dropSoon = clearImmediate;
  const resources = process.getActiveResourcesInfo.bind(process);
  const nextTick = process.nextTick.bind(process);
  const pid = process.pid;
  const { env } = process;
  const kill = process.kill.bind(process);

  const TEXT_LIMIT = 64 << 10;
  // Resources that do not keep a cell running, although a program would wait for them. Intervals are treated the same
  // way.
  const LASTING = new Set(["TTYWrap", "TCPServerWrap", "UDPWrap", "SignalWrap", "FSEventWrap", "StatWatcher", "PipeServerWrap"]);
  // The maximum wait for resources that may never end, such as a server in a child process or worker, and kept-alive
  // connections.
  const CHILD_MS = 10_000;
  const WAITED_MS = { ProcessWrap: CHILD_MS, PipeWrap: CHILD_MS, MessagePort: CHILD_MS, TCPSocketWrap: 500 };
  const DRAIN_STEP_MS = 2;
  // The maximum number of steps to wait until written output is flushed.
  const FLUSH_STEPS_MAX = 2500;
  // Above this number of timers of a cell, finished ones are dropped.
  const TIMERS_KEPT = 1000;

  class Exit extends Error {
    constructor(code) {
      super("exit " + code);
      this.exitCode = code;
    }
  }

  let cell = null; // {nonce, number, stop, fail, done, value, cut, wake}
  let announced = null; // the nonce of an interrupt that arrived before its cell
  let residue = false; // work of an earlier cell continues after its maximum wait

  // Writes to pipes are made synchronous, as writes to files are: no printed output is lost when code throws or
  // exits.
  const outputs = [process.stdout, process.stderr];
  for (const stream of outputs) {
    stream._handle?.setBlocking?.(true);
    stream.unref?.();
  }

  function send(header, blobs = []) {
    if (blobs.length > 0) header.blobs = blobs.map(([mime, bytes]) => ({ mime, bytes: bytes.length }));
    const head = from(stringify(header), "utf8");
    const sizes = alloc(8);
    let length = 4 + head.length;
    for (const [, bytes] of blobs) length += bytes.length;
    sizes.writeUInt32LE(length, 0);
    sizes.writeUInt32LE(head.length, 4);
    let rest = concat([sizes, head, ...blobs.map(([, bytes]) => bytes)]);
    while (rest.length > 0) {
      try {
        rest = rest.subarray(writeSync(4, rest));
      } catch (error) {
        if (error.code === "EAGAIN") continue;
        writeSync(2, "sandcell: the control channel is broken\n");
        process.reallyExit(71);
      }
    }
  }

  // Returns at most `most` code units of a text, without splitting a surrogate pair.
  function cut(text, most) {
    const half = /[\uD800-\uDBFF]$/.test(text.slice(0, most)) && text.length > most;
    return text.slice(0, half ? most - 1 : most);
  }

  function clip(text) {
    return text.length <= TEXT_LIMIT ? text : cut(text, TEXT_LIMIT) + `… (${text.length} characters)`;
  }

  // Lone surrogates cannot be sent.
  const clean = (text) => (text.toWellFormed ? text.toWellFormed() : from(text, "utf8").toString("utf8"));

  // ------------------------------------------------------------------ imports

  // Skips strings, comments and regular expressions, and calls `found` at each `import` keyword.
  function eachImport(code, found) {
    let at = 0;
    let last = "";
    const templates = [];
    const skipTemplate = () => {
      while (at < code.length) {
        if (code[at] === "\\") at += 2;
        else if (code[at] === "`") return void at++;
        else if (code[at] === "$" && code[at + 1] === "{") {
          templates.push(0);
          return void (at += 2);
        } else at++;
      }
    };
    while (at < code.length) {
      const c = code[at];
      const two = code.substr(at, 2);
      if (two === "//") {
        const end = code.indexOf("\n", at);
        at = end < 0 ? code.length : end;
      } else if (two === "/*") {
        const end = code.indexOf("*/", at + 2);
        at = end < 0 ? code.length : end + 2;
      } else if (c === '"' || c === "'") {
        for (at++; at < code.length && code[at] !== c && code[at] !== "\n"; at++) if (code[at] === "\\") at++;
        at++;
        last = c;
      } else if (c === "`") {
        at++;
        skipTemplate();
        last = c;
      } else if (c === "/" && /^$|[=(,:[!&|?{};+\-*%<>~^]$|\b(return|typeof|case|of|in|await)$/.test(last)) {
        let inClass = false;
        for (at++; at < code.length && (inClass || code[at] !== "/") && code[at] !== "\n"; at++) {
          if (code[at] === "\\") at++;
          else if (code[at] === "[") inClass = true;
          else if (code[at] === "]") inClass = false;
        }
        at++;
        last = "/x";
      } else if (/[\p{L}_$]/u.test(c)) {
        const start = at;
        while (at < code.length && /[\p{L}\p{N}_$]/u.test(code[at])) at++;
        const word = code.slice(start, at);
        if (word === "import" && last !== ".") at = found(start, at) ?? at;
        last = word;
      } else {
        if (templates.length > 0) {
          if (c === "{") templates[templates.length - 1]++;
          if (c === "}" && templates[templates.length - 1]-- === 0) {
            templates.pop();
            at++;
            skipTemplate();
            last = "`";
            continue;
          }
        }
        if (c.trim() !== "") last = c;
        at++;
      }
    }
  }

  const STATIC = /^import\s*(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|\{([^}]*)\}\s*)?(?:from\s*)?(["'])([^"'\n]+)\4(?:\s*(?:with|assert)\s*\{[^}]*\})?\s*;?/;

  // Scripts allow no static imports, and V8's console no dynamic ones: both become calls of a helper function.
  function rewriteImports(code) {
    if (!code.includes("import") && !code.includes("export")) return code;
    const parts = [];
    let from = 0;
    eachImport(code, (start, end) => {
      const rest = code.slice(start, start + 4000);
      const call = /^import\s*\(/.exec(rest);
      if (call) {
        parts.push(code.slice(from, start), "globalThis[Symbol.for('sandcell.import')]");
        from = end;
        return end;
      }
      const match = STATIC.exec(rest);
      if (!match) return end;
      const [whole, main, all, some, , name] = match;
      const target = `(await globalThis[Symbol.for('sandcell.import')](${stringify(name)}))`;
      const names = [];
      if (main) names.push(`default: ${main}`);
      if (some) for (const one of some.split(",")) if (one.trim()) names.push(one.trim().replace(/\s+as\s+/, ": "));
      let text = target + ";";
      if (all) text = `const ${all} = ${target}; ` + (main ? `const { default: ${main} } = ${all};` : "");
      else if (names.length > 0) text = `const { ${names.join(", ")} } = ${target};`;
      // Line numbers stay unchanged, so that errors name the author's lines.
      parts.push(code.slice(from, start), text, "\n".repeat(whole.split("\n").length - 1));
      from = start + whole.length;
      return from;
    });
    parts.push(code.slice(from));
    return parts.join("").replace(/(^|;[ \t]*)export\s+(default\s+)?(?=(async|function|class|const|let|var)\b)/gm, "$1");
  }

  Object.defineProperty(globalThis, Symbol.for("sandcell.import"), {
    value: (name, options) => {
      const plain = /^\.{0,2}\//.test(name);
      const target = plain ? require("url").pathToFileURL(path.resolve(name)).href : name;
      return import(target, options);
    },
  });

  // ------------------------------------------------------------------ evaluation

  const session = new inspector.Session();
  session.connect();

  const post = (method, params) => new Promise((resolve) => session.post(method, params, (error, result) => resolve(error ? { error } : result)));

  // Runs the code until it returns or first awaits. SIGINT throws meanwhile.
  const enter = new vm.Script("globalThis[Symbol.for('sandcell.enter')]()", { filename: "sandcell" });
  let entering = null;
  Object.defineProperty(globalThis, Symbol.for("sandcell.enter"), { value: () => entering() });

  let taken;
  Object.defineProperty(globalThis, Symbol.for("sandcell.take"), { value: (value) => void (taken = value) });

  // Returns the value of an inspector object.
  const valueOf = async (object) => (await boxed(object))[0];

  // Returns the value in an array: a promise resolved with the bare value would call its `then`, which runs user
  // code.
  async function boxed(object) {
    if (!object) return [undefined];
    if (object.objectId) {
      const take = "function () { globalThis[Symbol.for('sandcell.take')](this); }";
      await post("Runtime.callFunctionOn", { objectId: object.objectId, functionDeclaration: take, silent: true });
      const value = taken;
      taken = undefined;
      return [value];
    }
    if ("unserializableValue" in object) {
      const text = object.unserializableValue;
      return [text.endsWith("n") ? BigInt(text.slice(0, -1)) : Number(text)];
    }
    return [object.type === "undefined" ? undefined : object.value];
  }

  function evaluate(code, number) {
    const expression = rewriteImports(code) + `\n//# sourceURL=cell${number}.js`;
    return new Promise((resolve, reject) => {
      entering = () =>
        session.post("Runtime.evaluate", { expression, replMode: true, objectGroup: "cell", silent: true }, (error, result) =>
          error ? reject(error) : resolve(result));
      try {
        enter.runInThisContext({ breakOnSigint: true });
      } catch (error) {
        reject(error);
      }
    });
  }

  const isInterrupt = (error) => error?.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED";

  // Returns what a program would wait for before it ends, by kind, and whether there are resources that it would not
  // wait for.
  function pending() {
    const intervals = [...live].filter((timer) => timer.hasRef()).length;
    const counts = { Timeout: -intervals };
    let lasting = intervals > 0;
    for (const kind of resources()) {
      if (LASTING.has(kind)) lasting = true;
      else counts[kind] = (counts[kind] ?? 0) + 1;
    }
    return { counts, lasting };
  }

  // The same without the driver's control channel.
  function pendingOfOthers() {
    control.unref();
    const found = pending();
    control.ref();
    return found;
  }

  // Waits for the asynchronous work of this cell, but not of earlier ones. Node lists most resources by kind, but
  // neither workers nor compression and encryption jobs: then the cell ends when the event loop is idle.
  async function drain(running) {
    const began = Date.now();
    const { counts: before, lasting: lastingBefore } = running.before;
    const olds = residue || lastingBefore || Object.values(before).some((count) => count > 0);
    control.unref();
    try {
      await new Promise((resolve) => setSoon(resolve));
      while (!running.cut) {
        const { counts, lasting } = pending();
        const more = Object.keys(counts).filter((kind) => counts[kind] > (before[kind] ?? 0));
        if (more.length === 0 && (olds || lasting)) return;
        const most = more.length === 0 ? CHILD_MS : Math.max(...more.map((kind) => WAITED_MS[kind] ?? Infinity));
        if (Date.now() - began > most) return void (residue = true);
        if (await step(running)) return void (residue = false);
      }
    } finally {
      control.ref();
    }
  }

  // Waits briefly; resolves to true if the event loop is idle.
  function step(running) {
    return new Promise((resolve) => {
      const idle = () => over(true);
      const timer = setTimer(() => over(false), DRAIN_STEP_MS).unref();
      const over = (isIdle) => {
        running.wake = undefined;
        dropTimer(timer);
        process.removeListener("beforeExit", idle);
        resolve(isIdle);
      };
      running.wake = () => over(false);
      process.once("beforeExit", idle);
    });
  }

  // Waits until all output is in the pipes. A child process may have made them non-blocking.
  async function flush() {
    for (const stream of outputs) while (stream.writableCorked > 0 && !stream.destroyed) stream.uncork();
    for (let n = 0; n < FLUSH_STEPS_MAX && outputs.some((stream) => stream.writableLength > 0 && !stream.destroyed); n++) {
      await new Promise((resolve) => setTimer(resolve, DRAIN_STEP_MS));
    }
  }

  function describe(error, number) {
    if (!(error instanceof Error) && !(error && typeof error === "object" && typeof error.stack === "string")) {
      return { name: "Error", message: clean(clip(inspect(error))), traceback: "Uncaught " + clean(clip(inspect(error))) };
    }
    const lines = String(error.stack ?? error).split("\n");
    const isFrame = (line) => /^\s+at /.test(line);
    const kept = lines.filter((line) => !isFrame(line) || (!/node:|\[eval\]|sandcell|Session\.post/.test(line)));
    while (/^\s+at (new Promise|async Promise|process\.|Promise\.)/.test(kept.at(-1))) kept.pop();
    let text = kept.join("\n").trimEnd();
    if (error.cause !== undefined) text += "\n  cause: " + inspect(error.cause, { depth: 1 }).split("\n")[0];
    const extra = Object.keys(error).filter((key) => !["code", "stack", "message", "cause"].includes(key)).length;
    if (extra > 0 && typeof error.errors === "object") text += "\n" + inspect(error.errors, { depth: 1 });
    return { name: String(error.name || "Error"), message: clean(clip(String(error.message))), traceback: clean(clip(text)) };
  }

  function classOf(error) {
    switch (error?.code) {
      case "ENOSPC":
        return "disk";
      case "EAGAIN":
        return error.syscall?.startsWith("spawn") ? "processes" : "";
      case "ENETUNREACH":
      case "ENOTFOUND":
      case "EAI_AGAIN":
        return "network";
      default:
        return error?.cause ? classOf(error.cause) : "";
    }
  }

  function hintOf(error) {
    const missing = /^Cannot find (?:module|package) '([^'.\/][^']*)'/.exec(error?.message ?? "");
    return missing ? `the module ${missing[1]} is not there; use what comes with Node, or bring its files with write_file` : "";
  }

  // Describes a syntax error: V8 reports its line separately from the error.
  function describeSyntax(result, code, number) {
    const details = result.exceptionDetails;
    const line = code.split("\n")[details.lineNumber] ?? "";
    const message = (result.result.description ?? details.text).split("\n")[0];
    const mark = line.length < 300 ? `\n${line}\n${" ".repeat(Math.max(0, details.columnNumber))}^` : "";
    const text = `cell${number}.js:${details.lineNumber + 1}:${details.columnNumber + 1}${mark}\n${message}`;
    return { name: "SyntaxError", message: message.replace(/^SyntaxError: /, ""), traceback: clean(text) };
  }

  const interrupted = { name: "Interrupted", message: "", traceback: "Interrupted: the code was stopped from outside" };

  // Values of libraries can be huge: the longer the text, the lower the depth.
  function show(value) {
    let text = "";
    for (const depth of [2, 1, 0, -1]) {
      text = inspect(value, { depth, maxStringLength: typeof value === "string" ? TEXT_LIMIT : 10_000 });
      if (text.length < 4000) break;
    }
    return text;
  }

  // Returns the end of a cell that threw this error.
  function endOf(error, number) {
    if (error instanceof Exit) return { status: "exit", exit_code: error.exitCode };
    if (isInterrupt(error)) return { status: "interrupted", exit_code: 130, error: interrupted };
    return { status: "error", exit_code: 1, error: { ...describe(error, number), hint: hintOf(error), class: classOf(error) } };
  }

  // Evaluates the code and records its value or its failure.
  async function work(running, header) {
    try {
      const result = await evaluate(header.code, running.number);
      if (result.exceptionDetails) {
        const error = await valueOf(result.exceptionDetails.exception ?? result.result);
        const thrown = result.exceptionDetails.exception?.objectId && error?.name === "SyntaxError" &&
          !/\n\s+at .*cell\d+\.js/.test(error.stack ?? "");
        if (!thrown) return running.fail(error);
        const syntax = { ...describeSyntax(result, header.code, running.number), hint: "", class: "" };
        return running.stop({ status: "error", exit_code: 1, error: syntax });
      }
      let value = await valueOf(result.result);
      if (util.types.isPromise(value)) value = await value;
      running.value = value;
    } catch (error) {
      running.fail(error);
    }
  }

  // Returns the value as text, or null. Formatting may run user code.
  function shown(running) {
    if (running.value === undefined || running.cut) return null;
    try {
      return from(cut(clean(clip(show(running.value))), TEXT_LIMIT / 2), "utf8");
    } catch (error) {
      running.fail(error);
      return null;
    }
  }

  // An error, an exit and an interrupt end a cell as they end a program: its timers are cleared. Other asynchronous
  // work is waited for, so that its output is in its own result.
  async function run(header) {
    const running = { nonce: header.nonce, number: header.cell, done: null, cut: false, before: pendingOfOthers() };
    cell = running;
    const stopped = new Promise((resolve) => {
      running.stop = (done) => {
        if (cell !== running) return;
        endTimers();
        running.cut ||= done.status === "interrupted";
        running.done ??= done;
        running.wake?.();
        resolve();
      };
    });
    running.fail = (error) => running.stop(endOf(error, running.number));
    giveStdin(header.stdin);
    // The code and its programs name it when they call tools of the host.
    if (header.execution) env.SANDCELL_EXECUTION = header.execution;
    if (announced === running.nonce) running.fail({ code: "ERR_SCRIPT_EXECUTION_INTERRUPTED" });
    else await Promise.race([work(running, header), stopped]);
    await drain(running);
    const text = shown(running);
    await flush();
    if (!running.done && process.exitCode) {
      running.done = { status: "exit", exit_code: Number(process.exitCode) || 0 };
    }
    process.exitCode = undefined;
    made = [];
    cell = null;
    if (text) send({ type: "result", nonce: running.nonce }, [["text/plain", text]]);
    send({ type: "done", nonce: running.nonce, ...(running.done ?? { status: "ok", exit_code: 0 }) });
    session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
  }

  // ------------------------------------------------------------------ actions of code that would end the session

  process.exit = process.reallyExitOfUser = (code) => {
    const number = Number(code ?? process.exitCode ?? 0) & 255;
    process.exitCode = undefined;
    throw new Exit(number);
  };
  delete process.reallyExitOfUser;

  process.on("SIGINT", () => cell?.fail({ code: "ERR_SCRIPT_EXECUTION_INTERRUPTED" }));

  // The first uncaught error belongs to the cell. Others, and those between cells, are printed.
  const astray = (error) => {
    if (cell && !cell.done) return cell.fail(error);
    if (!(error instanceof Exit)) writeSync(2, describe(error).traceback + "\n");
  };
  process.on("uncaughtException", astray);
  process.on("unhandledRejection", astray);

  // Timers of the running cell, and all intervals. An interval that is not cleared would keep a program alive
  // forever, so a cell does not wait for intervals.
  let made = [];
  let mostMade = TIMERS_KEPT;
  const live = new Set();

  function endTimers() {
    for (const timer of made) {
      live.delete(timer);
      dropTimer(timer);
      dropSoon(timer);
    }
    made = [];
  }

  for (const name of ["setTimeout", "setInterval", "setImmediate"]) {
    const make = globalThis[name];
    const tracked = function (...all) {
      const timer = make(...all);
      if (name === "setInterval") live.add(timer);
      if (cell) made.push(timer);
      if (made.length > mostMade) {
        made = made.filter((one) => !one._destroyed);
        mostMade = Math.max(TIMERS_KEPT, 2 * made.length);
      }
      return timer;
    };
    Object.defineProperties(tracked, Object.getOwnPropertyDescriptors(make));
    globalThis[name] = tracked;
  }
  for (const name of ["clearInterval", "clearTimeout"]) {
    const drop = globalThis[name];
    globalThis[name] = (timer) => {
      drop(timer);
      live.delete(timer);
      if (typeof timer !== "object") for (const one of live) if (one._destroyed) live.delete(one);
    };
  }

  // ------------------------------------------------------------------ standard input

  let stdin = null;
  Object.defineProperty(process, "stdin", {
    configurable: true,
    get() {
      stdin ??= Object.assign(new ReadStream(null, { fd: 0, autoClose: false }), { fd: 0, isTTY: false, setRawMode() { return this; } });
      stdin.unref ??= () => stdin;
      stdin.ref ??= () => stdin;
      return stdin;
    },
  });

  // The lowest free descriptor is the next one opened: 0.
  function giveStdin(text) {
    stdin = null;
    const file = text == null ? "/dev/null" : `/tmp/.sandcell-stdin-${pid}`;
    try {
      if (text != null) writeFileSync(file, text);
      closeSync(0);
      openSync(file, "r");
      if (text != null) unlinkSync(file);
    } catch (error) {
      writeSync(2, `sandcell: standard input could not be given: ${error.message}\n`);
    }
  }

  // ------------------------------------------------------------------ frames in

  let buffer = alloc(0);
  const queue = [];
  let busy = false;

  async function serve() {
    if (busy) return;
    busy = true;
    while (queue.length > 0) await run(queue.shift());
    busy = false;
  }

  // ------------------------------------------------------------------ variables

  const NAMES = 200;
  const ownNames = Object.getOwnPropertyNames;
  const descriptorOf = Object.getOwnPropertyDescriptor;
  const prototypeOf = Object.getPrototypeOf;
  let given = new Set();

  // Returns the type name of a value without running user code.
  function kindOf(value) {
    if (value === null || typeof value !== "object") return value === null ? "null" : typeof value;
    if (util.types.isProxy(value)) return "Proxy";
    for (let at = prototypeOf(value), depth = 0; at !== null && depth < 20; at = prototypeOf(at), depth++) {
      if (util.types.isProxy(at)) return "object";
      const maker = descriptorOf(at, "constructor")?.value;
      const name = typeof maker === "function" && !util.types.isProxy(maker) && descriptorOf(maker, "name")?.value;
      if (typeof name === "string" && name !== "") return name;
    }
    return "object";
  }

  function portrait(name, value) {
    const type = kindOf(value);
    const one = { name: clean(name).slice(0, 200), type: clean(type).slice(0, 200), shape: "", bytes: 0, preview: "" };
    if (typeof value === "string") {
      one.shape = String(value.length);
      one.preview = clean(stringify(cut(value, 80)) + (value.length > 80 ? "…" : ""));
    } else if (value === null || ["number", "boolean", "bigint", "undefined"].includes(typeof value)) {
      one.preview = Object.is(value, -0) ? "-0" : String(value).slice(0, 80);
    } else if (typeof value === "object" && !util.types.isProxy(value)) {
      if (ArrayBuffer.isView(value)) one.bytes = value.byteLength;
      if (Array.isArray(value)) one.shape = String(descriptorOf(value, "length").value);
      else if (util.types.isMap(value)) one.shape = String(mapSize.call(value));
      else if (util.types.isSet(value)) one.shape = String(setSize.call(value));
      else if (util.types.isTypedArray(value)) one.shape = String(typedLength.call(value));
      else one.shape = String(ownNames(value).length);
    }
    return one;
  }

  const mapSize = descriptorOf(Map.prototype, "size").get;
  const setSize = descriptorOf(Set.prototype, "size").get;
  const typedLength = descriptorOf(prototypeOf(Uint8Array.prototype), "length").get;

  async function listing() {
    const found = [];
    for (const name of ownNames(globalThis)) {
      const own = given.has(name) ? undefined : descriptorOf(globalThis, name);
      if (own && "value" in own) found.push([name, own.value]);
    }
    const { names = [] } = await post("Runtime.globalLexicalScopeNames", {});
    for (const name of names.slice(-NAMES)) {
      // A binding that was never initialised has no value; evaluating it is an error.
      const { result, exceptionDetails, error } = await post("Runtime.evaluate", { expression: name, silent: true });
      if (!error && !exceptionDetails) found.push([name, ...(await boxed(result))]);
    }
    return found
      .filter(([, value]) => typeof value !== "function")
      .slice(-NAMES)
      .map(([name, value]) => portrait(name, value));
  }

  async function variables(nonce) {
    let listed = [];
    try {
      listed = await listing();
    } catch {
      // A value that cannot be inspected must not prevent an answer.
    }
    send({ type: "variables", nonce, variables: listed });
  }

  function take(header) {
    if (header.type === "run") {
      queue.push(header);
      serve();
    } else if (header.type === "interrupt") {
      announced = header.nonce;
    } else if (header.type === "variables") {
      variables(header.nonce);
    }
  }

  const control = new Socket({ fd: 3, readable: true, writable: false });
  control.on("data", (bytes) => {
    buffer = concat([buffer, bytes]);
    for (;;) {
      if (buffer.length < 8) return;
      const size = buffer.readUInt32LE(0);
      if (buffer.length < 4 + size) return;
      const length = buffer.readUInt32LE(4);
      const header = parse(buffer.toString("utf8", 8, 8 + length));
      buffer = buffer.subarray(4 + size);
      take(header);
    }
  });
  const gone = () => process.reallyExit(0);
  control.on("end", gone);
  control.on("error", gone);

  globalThis.require = createRequire(path.join(process.cwd(), "cell.js"));
  const older = { exports: {} };
  globalThis.module = older;
  globalThis.exports = older.exports;
  globalThis.__filename = path.join(process.cwd(), "cell.js");
  globalThis.__dirname = process.cwd();
  process.argv = [process.argv[0], globalThis.__filename];
  given = new Set(ownNames(globalThis));
  send({ type: "ready", version: process.version.slice(1), pid });
}
