import * as http from "node:http";

import { NvshareError } from "./errors.js";

/** Where the scheduler listens. */
export interface Place {
  socketPath?: string;
  baseUrl?: string;
}

export interface Call {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  body?: unknown;
  /** Until the call fails without an answer; Infinity: never. 10 s if it is not said. */
  patienceMs?: number;
  signal?: AbortSignal | undefined;
}

export interface Answer {
  status: number;
  body: unknown;
}

/** How long the scheduler may take for an answer that needs no waiting. */
export const PATIENCE_MS = 10_000;

// The scheduler closes connections that are idle for 60 s. This must be shorter, because a request
// that meets the end of its connection is sent twice.
const IDLE_MS = 5_000;

// How long an aborted request waits for the scheduler to see it.
const WITHDRAWAL_MS = 1_000;

/** JSON requests over connections that are kept for the next request. */
export class Transport {
  readonly #agent = new http.Agent({ keepAlive: true, timeout: IDLE_MS });
  readonly #where: http.RequestOptions;
  readonly #prefix: string = "";
  readonly #name: string;
  readonly #attempts = new Set<Attempt>();

  constructor({ socketPath, baseUrl }: Place) {
    if (baseUrl === undefined) {
      const folder = process.env["NVSHARE_RUN_DIR"] || "/run/nvshare";
      this.#name = socketPath ?? `${folder}/api.sock`;
      this.#where = { socketPath: this.#name };
      return;
    }
    if (socketPath !== undefined) throw new TypeError("socketPath and baseUrl exclude each other");
    const url = new URL(baseUrl);
    if (url.protocol !== "http:") throw new TypeError(`baseUrl: ${baseUrl} is not http://`);
    this.#name = baseUrl;
    this.#prefix = url.pathname.replace(/\/$/, "");
    this.#where = { host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port || 80 };
  }

  /**
   * An answer of any HTTP code. Rejects when none comes, or the signal aborts before it does. An
   * aborted request is withdrawn once this rejects. When its answer was on the way, it is returned.
   */
  async call(call: Call): Promise<Answer> {
    call.signal?.throwIfAborted();
    const patienceMs = call.patienceMs ?? PATIENCE_MS;
    const attempt = new Attempt(call, this.#name, (options) =>
      http.request({
        ...this.#where,
        ...options,
        path: this.#prefix + call.path,
        agent: this.#agent,
      }),
    );
    this.#attempts.add(attempt);
    const abort = () => attempt.withdraw();
    call.signal?.addEventListener("abort", abort, { once: true });
    const timer = Number.isFinite(patienceMs)
      ? setTimeout(() => attempt.giveUp(`no answer within ${patienceMs} ms`), patienceMs)
      : undefined;
    try {
      return await attempt.answer();
    } finally {
      this.#attempts.delete(attempt);
      clearTimeout(timer);
      call.signal?.removeEventListener("abort", abort);
    }
  }

  close(): void {
    for (const attempt of this.#attempts) attempt.giveUp("the client was closed");
    this.#agent.destroy();
  }
}

type Open = (options: http.RequestOptions) => http.ClientRequest;

// One call, on one connection after the other until one of them is alive.
class Attempt {
  readonly #call: Call;
  readonly #name: string;
  readonly #open: Open;
  #request: http.ClientRequest | undefined;
  #withdrawal: NodeJS.Timeout | undefined;
  #ended = false; // on purpose: nothing is tried again

  constructor(call: Call, name: string, open: Open) {
    this.#call = call;
    this.#name = name;
    this.#open = open;
  }

  async answer(): Promise<Answer> {
    try {
      for (;;) {
        const request = this.#send();
        try {
          return await received(request);
        } catch (error) {
          // The scheduler has closed a kept connection before it read the request.
          const stale = request.reusedSocket && isReset(error) && !this.#ended;
          if (!stale) throw this.#told(error);
        }
      }
    } finally {
      clearTimeout(this.#withdrawal);
    }
  }

  giveUp(message: string): void {
    this.#ended = true;
    this.#request?.destroy(new Error(message));
  }

  // Closing our end withdraws a request that waits. The other end stays open, because a lease that
  // was granted at the same moment must be given back.
  withdraw(): void {
    this.#ended = true;
    const socket = this.#request?.socket;
    if (!socket || socket.connecting) {
      this.#request?.destroy();
      return;
    }
    socket.end();
    this.#withdrawal = setTimeout(() => this.#request?.destroy(), WITHDRAWAL_MS);
  }

  #send(): http.ClientRequest {
    const { method, body } = this.#call;
    const text = body === undefined ? undefined : JSON.stringify(body);
    const headers: http.OutgoingHttpHeaders = { Accept: "application/json" };
    if (text !== undefined) {
      headers["Content-Type"] = "application/json";
      headers["Content-Length"] = Buffer.byteLength(text);
    }
    const request = this.#open({ method, headers });
    this.#request = request;
    request.end(text);
    return request;
  }

  #told(error: unknown): unknown {
    if (this.#call.signal?.aborted) return this.#call.signal.reason;
    if (error instanceof NvshareError) return error;
    const why = error instanceof Error ? error.message : String(error);
    return new NvshareError(0, `${this.#name}: ${why}`, {}, { cause: error });
  }
}

function received(request: http.ClientRequest): Promise<Answer> {
  return new Promise((resolve, reject) => {
    request.once("error", reject);
    request.once("response", (response) => {
      const parts: Buffer[] = [];
      response.on("data", (part: Buffer) => parts.push(part));
      response.once("error", reject);
      response.once("end", () => {
        const status = response.statusCode ?? 0;
        try {
          const text = Buffer.concat(parts).toString("utf8");
          resolve({ status, body: text === "" ? undefined : JSON.parse(text) });
        } catch {
          reject(new NvshareError(status, "the answer is not JSON"));
        }
      });
    });
  });
}

function isReset(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException).code;
  return code === "ECONNRESET" || code === "EPIPE";
}
