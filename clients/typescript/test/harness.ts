// The real scheduler, with a software card, for one test.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import type { Readable } from "node:stream";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { type Lease, type LeaseRequest, Nvshare } from "nvshare";

const build = process.env["NVSHARE_BUILD"] ?? "";
const PATIENCE_MS = 30_000; // for what must happen, on a busy machine

export interface Setup {
  /** Loopback TCP; a private scheduler has none. */
  tcp?: boolean;
  /** Settings, by their names in the environment. */
  environment?: Record<string, string>;
}

export class Scheduler {
  readonly folder = mkdtempSync(join(tmpdir(), "nvshare-ts-"));
  readonly socketPath = join(this.folder, "api.sock");
  readonly client = new Nvshare({ socketPath: this.socketPath });
  baseUrl = "";
  #process: ChildProcess | undefined;
  readonly #setup: Setup;

  constructor(setup: Setup) {
    this.#setup = setup;
  }

  async start(): Promise<void> {
    const words = ["--run-dir", this.folder, "--ready-fd", "3"];
    const environment: NodeJS.ProcessEnv = {
      LD_LIBRARY_PATH: join(build, "lib/softgpu"),
      NVSHARE_SOFTGPU_CARD: basename(this.folder),
      NVSHARE_SOFTGPU_MEMORY: "8Gi",
      NVSHARE_RUN_CGROUPS: "false",
      NVSHARE_LEASE_SLOTS: "1",
      ...this.#setup.environment,
    };
    if (this.#setup.tcp) {
      const address = `127.0.0.1:${await freePort()}`;
      environment["NVSHARE_HTTP_LISTEN"] = address;
      this.baseUrl = `http://${address}`;
    } else {
      words.push("--private");
    }
    const log = openSync(join(this.folder, "log"), "a");
    // The scheduler ends with the test, also when the test is killed.
    const program = ["--pdeathsig", "KILL", join(build, "bin/nvshare-scheduler"), ...words];
    this.#process = spawn("setpriv", program, {
      env: { ...process.env, ...environment },
      stdio: ["ignore", log, log, "pipe"],
    });
    const ready = this.#process.stdio[3] as Readable;
    const said = await Promise.race([once(ready, "data"), once(this.#process, "exit")]);
    if (!Buffer.isBuffer(said[0])) throw new Error(`the scheduler did not start: ${this.log()}`);
  }

  async stop(): Promise<void> {
    const running = this.#process;
    this.#process = undefined;
    if (!running || running.exitCode !== null) return;
    const ended = once(running, "exit");
    running.kill();
    await ended;
  }

  signal(name: NodeJS.Signals): void {
    this.#process?.kill(name);
  }

  log(): string {
    return readFileSync(join(this.folder, "log"), "utf8");
  }

  /** A lease that is there at once. */
  async lease(request: LeaseRequest = { taskType: "ASR" }): Promise<Lease> {
    const answer = await this.client.acquire(request);
    if (answer.result !== "ACQUIRED") throw new Error(`no lease: ${answer.result}`);
    return answer.lease;
  }

  /** Comes back when so many requests wait. */
  async waiting(count: number): Promise<void> {
    await eventually(async () => (await this.client.status()).gpus[0]?.gpu_queue_len === count);
  }
}

export async function eventually(holds: () => Promise<boolean>): Promise<void> {
  const until = performance.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (performance.now() > until) throw new Error(`it is not so within ${PATIENCE_MS} ms`);
    await pause(5);
  }
}

/** A test with a scheduler of its own. */
export function scheduled(
  name: string,
  body: (scheduler: Scheduler) => Promise<void>,
  setup: Setup = {},
): void {
  test(name, { timeout: 2 * PATIENCE_MS }, async () => {
    const scheduler = new Scheduler(setup);
    try {
      await scheduler.start();
      await body(scheduler);
    } catch (error) {
      process.stderr.write(scheduler.log());
      throw error;
    } finally {
      scheduler.client.close();
      await scheduler.stop();
      rmSync(scheduler.folder, { recursive: true, force: true });
    }
  });
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}
