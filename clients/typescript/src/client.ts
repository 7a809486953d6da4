import type {
  Config,
  ConfigChange,
  LeaseRequest,
  ListedLease,
  Refused,
  Status,
  TaskClass,
} from "./bodies.js";
import { errorOf, NvshareRefusedError } from "./errors.js";
import { type GrantedBody, Keeper, Lease } from "./lease.js";
import { type Call, PATIENCE_MS, type Place, Transport } from "./transport.js";

/** Where the scheduler listens; without either: `$NVSHARE_RUN_DIR/api.sock`, or `/run/nvshare`. */
export interface NvshareOptions {
  /** The Unix socket of the scheduler. A lease that comes over it ends with this process. */
  socketPath?: string;
  /** For programs that cannot use the socket: `http://127.0.0.1:9402`. */
  baseUrl?: string;
}

/** The arbiter's answer when it grants a lease. */
export interface Acquired {
  result: "ACQUIRED";
  lease: Lease;
  queueWaitMs: number;
  trace?: string;
}

export interface AcquireOptions {
  /** Withdraws a request that waits. `acquire` then rejects with the signal's reason. */
  signal?: AbortSignal;
}

export interface WatchOptions {
  signal?: AbortSignal;
}

export interface WithLeaseOptions<R> extends AcquireOptions {
  /** What to do without a lease: its value is that of `withLease`. */
  onRefused?: (refused: Refused) => R | Promise<R>;
}

/** The client of one scheduler. Its connections are kept, and do not keep the process running. */
export class Nvshare {
  readonly #transport: Transport;

  constructor(options: NvshareOptions = {}) {
    this.#transport = new Transport(options satisfies Place);
  }

  /**
   * Asks for a lease, and waits until the arbiter has decided. A refusal is an answer, too: look at
   * `result`. Rejects with `NvshareError` where the request makes no sense or no scheduler is.
   */
  async acquire(request: LeaseRequest, options: AcquireOptions = {}): Promise<Acquired | Refused> {
    return (await this.#ask(request, options)).decision;
  }

  /**
   * Runs `work` while it holds a lease, and gives the lease back however `work` ends. The lease is
   * renewed until then. `lost` aborts when the lease is gone all the same. Without a lease, the
   * value is that of `onRefused`; where there is none, it rejects with `NvshareRefusedError`.
   */
  async withLease<T, R = never>(
    request: LeaseRequest,
    work: (lease: Lease, lost: AbortSignal) => T | Promise<T>,
    options: WithLeaseOptions<R> = {},
  ): Promise<T | R> {
    const { status, decision } = await this.#ask(request, options);
    if (decision.result !== "ACQUIRED") {
      if (options.onRefused) return options.onRefused(decision);
      throw new NvshareRefusedError(status, decision);
    }
    const keeper = new Keeper(decision.lease);
    try {
      return await work(decision.lease, keeper.lost);
    } finally {
      await keeper.end();
    }
  }

  /** What a dispatcher wants to know of each GPU. */
  async status(): Promise<Status> {
    return (await this.#good({ method: "GET", path: "/v1/status" })) as Status;
  }

  /**
   * The status now, and again on every change, at most ten times a second. A loop over it ends by
   * `break`. Rejects when the stream ends: with the signal's reason, or with `NvshareError`.
   */
  async *watchStatus({ signal }: WatchOptions = {}): AsyncGenerator<Status, never, void> {
    return yield* this.#transport.events("/v1/status/stream", signal) as AsyncGenerator<
      Status,
      never,
      void
    >;
  }

  /** The classes, with what became of their requests. */
  async classes(): Promise<TaskClass[]> {
    const body = await this.#good({ method: "GET", path: "/v1/classes" });
    return (body as { classes: TaskClass[] }).classes;
  }

  /** The first 200 leases and waiting requests. */
  async leases(): Promise<ListedLease[]> {
    const body = await this.#good({ method: "GET", path: "/v1/leases" });
    return (body as { leases: ListedLease[] }).leases;
  }

  /** One of them. Rejects with 410 when it was taken away, with 404 when there is none. */
  async lease(leaseId: string): Promise<ListedLease> {
    return (await this.#good({ method: "GET", path: pathOf(leaseId) })) as ListedLease;
  }

  /** The marks and times. */
  async config(): Promise<Config> {
    return (await this.#good({ method: "GET", path: "/v1/config" })) as Config;
  }

  /** Changes some of them, all or none. Only administrators may. The answer is the whole. */
  async patchConfig(change: ConfigChange): Promise<Config> {
    return (await this.#good({ method: "PATCH", path: "/v1/config", body: change })) as Config;
  }

  /** Closes the connections, also those of requests that wait. */
  close(): void {
    this.#transport.close();
  }

  async #ask(
    request: LeaseRequest,
    { signal }: AcquireOptions,
  ): Promise<{ status: number; decision: Acquired | Refused }> {
    const { maxWaitMs } = request;
    // Only the scheduler knows how long a class waits.
    const patienceMs = maxWaitMs === undefined ? Infinity : maxWaitMs + PATIENCE_MS;
    const call: Call = { method: "POST", path: "/v1/leases", body: request, patienceMs, signal };
    const answer = await this.#transport.call(call);
    const body = answer.body as GrantedBody | Refused | undefined;
    if (typeof body?.result !== "string") throw errorOf(answer);
    if (body.result !== "ACQUIRED") {
      signal?.throwIfAborted();
      return { status: answer.status, decision: body };
    }
    const lease = new Lease(body, {
      release: (leaseId) => this.#release(leaseId),
      renew: (leaseId, holdMaxMs) => this.#renew(leaseId, holdMaxMs),
    });
    if (signal?.aborted) {
      await lease.release().catch(() => {});
      throw signal.reason;
    }
    const decision: Acquired = { result: body.result, lease, queueWaitMs: body.queueWaitMs };
    if (body.trace !== undefined) decision.trace = body.trace;
    return { status: answer.status, decision };
  }

  async #release(leaseId: string): Promise<void> {
    await this.#good({ method: "DELETE", path: pathOf(leaseId) });
  }

  async #renew(leaseId: string, holdMaxMs?: number): Promise<Date> {
    const path = `${pathOf(leaseId)}/renew`;
    const body = await this.#good({ method: "POST", path, body: { holdMaxMs } });
    return new Date((body as { expiresAt: string }).expiresAt);
  }

  async #good(call: Call): Promise<unknown> {
    const answer = await this.#transport.call(call);
    if (answer.status < 200 || answer.status > 299) throw errorOf(answer);
    return answer.body;
  }
}

function pathOf(leaseId: string): string {
  return `/v1/leases/${encodeURIComponent(leaseId)}`;
}
