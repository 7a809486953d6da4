import * as http from "node:http";

import { told } from "./errors.js";
import { type Answer, answerOf } from "./response.js";
import { Stream } from "./stream.js";

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
  readonly #streams = new Set<Stream>();

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

  /** The data of the events of a reply that goes on. The signal ends it with its reason. */
  async *events(path: string, signal?: AbortSignal): AsyncGenerator<unknown, never, void> {
    const options = { ...this.#where, path: this.#prefix + path };
    const stream = new Stream(options, this.#name, signal);
    this.#streams.add(stream);
    try {
      return yield* stream.events();
    } finally {
      this.#streams.delete(stream);
    }
  }

  close(): void {
    for (const attempt of this.#attempts) attempt.giveUp("the client was closed");
    for (const stream of this.#streams) stream.end("the client was closed");
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
          if (!stale) throw told(error, this.#name, this.#call.signal);
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
}

// Listens for the whole at once, because an error may come between the head and the body.
function received(request: http.ClientRequest): Promise<Answer> {
  return new Promise((resolve, reject) => {
    request.once("error", reject);
    request.once("response", (response) => answerOf(response).then(resolve, reject));
  });
}

function isReset(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException).code;
  return code === "ECONNRESET" || code === "EPIPE";
}
