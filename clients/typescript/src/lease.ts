import { performance } from "node:perf_hooks";
import { setTimeout as pause } from "node:timers/promises";

import type { TaskType } from "./bodies.js";
import { isGone } from "./errors.js";

/** The arbiter's answer to a request that gets its lease. */
export interface GrantedBody {
  result: "ACQUIRED";
  leaseId: string;
  taskType: TaskType;
  gpu: number;
  gpuKey: string;
  acquiredAt: string;
  queueWaitMs: number;
  expiresAt: string;
  trace?: string;
}

/** The two requests that a lease makes. */
export interface LeaseCalls {
  release(leaseId: string): Promise<void>;
  renew(leaseId: string, holdMaxMs?: number): Promise<Date>;
}

/**
 * The right to use a GPU, until it is released or expires. `await using` releases it, too (Node
 * 18.18 or later). It also ends with its owner: this process, if the request names no other.
 */
export class Lease {
  readonly leaseId: string;
  readonly taskType: TaskType;
  /** Index and UUID of the GPU. */
  readonly gpu: number;
  readonly gpuKey: string;
  readonly acquiredAt: Date;
  readonly #calls: LeaseCalls;
  #expiresAt: Date;
  #released: Promise<void> | undefined;

  /** @internal */
  constructor(body: GrantedBody, calls: LeaseCalls) {
    this.leaseId = body.leaseId;
    this.taskType = body.taskType;
    this.gpu = body.gpu;
    this.gpuKey = body.gpuKey;
    this.acquiredAt = new Date(body.acquiredAt);
    this.#expiresAt = new Date(body.expiresAt);
    this.#calls = calls;
  }

  /** The lease is taken away then. A renewal moves it. */
  get expiresAt(): Date {
    return this.#expiresAt;
  }

  /**
   * Gives the lease back. A second call does nothing more. Rejects with 410 when the lease was
   * taken away before: then somebody else may have used the GPU at the same time.
   */
  release(): Promise<void> {
    this.#released ??= this.#calls.release(this.leaseId);
    return this.#released;
  }

  /**
   * The lease lasts for so much longer from now on; without a time, for as long as at first. Never
   * for longer than its class holds leases. The answer is the new `expiresAt`.
   */
  async renew(holdMaxMs?: number): Promise<Date> {
    this.#expiresAt = await this.#calls.renew(this.leaseId, holdMaxMs);
    return this.#expiresAt;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch((error: unknown) => {
      if (!isGone(error)) throw error;
    });
  }
}

/** Renews a lease until its end. */
export class Keeper {
  readonly #lease: Lease;
  readonly #holdMs: number;
  readonly #done = new AbortController();
  readonly #lost = new AbortController();
  readonly #renewals: Promise<void>;

  constructor(lease: Lease) {
    this.#lease = lease;
    this.#holdMs = lease.expiresAt.getTime() - lease.acquiredAt.getTime();
    this.#renewals = this.#renew();
  }

  /** Aborts when the lease is gone before its end. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** Gives the lease back. A failure is no news: the lease ends with its time at the latest. */
  async end(): Promise<void> {
    this.#done.abort();
    await this.#renewals;
    if (!this.lost.aborted) await this.#lease.release().catch(() => {});
  }

  // At thirds of the time, so that one renewal may fail.
  async #renew(): Promise<void> {
    let renewedAt = performance.now();
    for (;;) {
      const options = { signal: this.#done.signal, ref: false };
      await pause(this.#holdMs / 3, undefined, options).catch(() => {});
      if (this.#done.signal.aborted) return;
      const askedAt = performance.now();
      try {
        await this.#lease.renew();
        renewedAt = askedAt;
      } catch (error) {
        if (!isGone(error) && performance.now() - renewedAt < this.#holdMs) continue;
        this.#lost.abort(error);
        return;
      }
    }
  }
}
