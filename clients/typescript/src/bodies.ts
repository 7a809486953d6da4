// What the arbiter takes and answers, as JSON. docs/arbiter.md has the rules behind it.

/** A class of work. `scheduler.toml` may have more than the four that are always there. */
export type TaskType = "ASR" | "NMT" | "TTS" | "SEMANTIC_REPAIR" | (string & {});

/** What a request does where it would have to wait. */
export type BusyPolicy = "WAIT" | "SKIP" | "FALLBACK_CPU";

/** Why there is no lease. */
export type RefusalReason = "GPU_BUSY" | "GPU_USAGE_HIGH" | "GPU_USAGE_UNKNOWN" | "GPU_MEMORY" | "GPU_GONE";

/** Why a lease was taken away. */
export type LossReason = "OVERDUE" | "GPU_GONE" | "OWNER_GONE";

/** What the service knows of the work. */
export interface Hint {
  /** Length of the sound. A long one raises the marks of the GPU for a while. */
  estimatedAudioMs?: number;
  /** How long the lease will be held. Others learn from it when to come again. */
  estimatedGpuHoldMs?: number;
}

/** A request for a lease. Times are whole numbers of milliseconds. */
export interface LeaseRequest {
  taskType: TaskType;
  /** Index or UUID of the GPU; without it, the GPU with most room. */
  gpuKey?: number | string;
  /** How long the request waits at most; without it, as long as its class does. */
  maxWaitMs?: number;
  /** How long the lease lasts without being renewed; no longer than its class's. */
  holdMaxMs?: number;
  /** May refuse to wait where the class waits, never the other way round. */
  busyPolicy?: BusyPolicy;
  hint?: Hint;
  /** The process with which the lease ends; null: no process; without it, this process. */
  ownerPid?: number | null;
  /** The lease lends its priority to the processes below the owner, too. */
  withChildren?: boolean;
  /** A text of at most 256 bytes. It comes back in answers and lists. */
  trace?: string;
}

/** The arbiter's answer when it does not grant a lease. */
export interface Refused {
  /**
   * TIMEOUT: the request has waited in vain. SKIPPED: it does not wait. FALLBACK_CPU: the same, and
   * the work is meant for the CPU. QUEUE_FULL: too many requests wait.
   */
  result: "TIMEOUT" | "SKIPPED" | "FALLBACK_CPU" | "QUEUE_FULL";
  reason?: RefusalReason;
  queueWaitMs: number;
  /** When the next lease is expected to end. */
  retryAfterMs: number;
  trace?: string;
}

/** What all entries of the list of leases say. Times are texts (RFC 3339, UTC). */
export interface ListedRequest {
  /** Null for another user's. */
  leaseId: string | null;
  taskType: TaskType;
  priority: number;
  gpu: number;
  gpuKey: string;
  askedAt: string;
  /** User and process that own it; missing where nobody does. */
  uid?: number;
  pid?: number;
  trace?: string;
}

export interface ActiveLease extends ListedRequest {
  state: "ACTIVE";
  acquiredAt: string;
  /** The lease is taken away then. */
  expiresAt: string;
  /** By its hint, or by what its class usually takes. */
  expectedEndAt: string;
}

export interface WaitingRequest extends ListedRequest {
  state: "WAITING" | "PREPARING";
  givesUpAt: string;
}

/** An entry of the list of leases. */
export type ListedLease = ActiveLease | WaitingRequest;

/** What became of the requests of a class since the scheduler's start. */
export interface Counts {
  acquired: number;
  timedOut: number;
  skipped: number;
  fellBack: number;
  queueFull: number;
  revoked: number;
  released: number;
  /** Of the acquired ones, together. */
  queueWaitMsTotal: number;
}

export interface TaskClass {
  taskType: TaskType;
  /** 0 to 100. */
  priority: number;
  /** The priority of a tenant that counts as much, -10 to 10. */
  tenantPriority: number;
  maxWaitMs: number;
  holdMaxMs: number;
  /** What a request does when no slot is free. */
  busy: BusyPolicy;
  /** What a request does under high pressure. */
  pressure: BusyPolicy;
  /** Leases of this class on one GPU; null: as many as the GPU has. */
  slots: number | null;
  counts: Counts;
}

/** What a dispatcher wants to know of a GPU. */
export interface GpuStatus {
  gpu: number;
  gpuKey: string;
  gpu_admission_state: "NORMAL" | "HIGH_PRESSURE" | "UNKNOWN";
  /** Percent of the time in which the GPU was busy; null: not known. */
  gpu_usage: number | null;
  gpu_usage_cache_age_ms: number | null;
  gpu_queue_len: number;
  active_leases: number;
  lease_slots: number;
  high_water: number;
  low_water: number;
  /** Until when a hint raises the marks. */
  raised_until: string | null;
}

export interface Status {
  time: string;
  gpus: GpuStatus[];
  /** Only classes with requests so far. */
  classes: Record<string, Counts>;
}

/** The marks and times of the arbiter. Water marks and boosts are percent. */
export interface Config {
  gpuUsage: {
    sampleIntervalMs: number;
    cacheTtlMs: number;
    baseHighWater: number;
    baseLowWater: number;
    dynamicAdjustment: {
      enabled: boolean;
      longAudioThresholdMs: number;
      highWaterBoost: number;
      lowWaterBoost: number;
      adjustmentTtlMs: number;
    };
  };
  leases: {
    /** Leases on one GPU at a time. */
    slots: number;
    /** Requests that wait for one GPU. */
    queue: number;
  };
}

/** A part of the configuration: what it does not say stays as it is. */
export type ConfigChange = Parts<Config>;

type Parts<T> = { [K in keyof T]?: T[K] extends object ? Parts<T[K]> : T[K] };
