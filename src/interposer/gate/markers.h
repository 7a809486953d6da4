#pragma once

#include "interposer/gate/records.h"

// The completion markers of one stream.
//
// A stream is taken for done when a marker says so, or the stream itself, or when its context is
// broken, so that nobody will ever say anything. That the driver has no memory for a marker says
// nothing of what runs: the stream stays busy, and is looked at again.
namespace nvshare::interposer::gate {

// Whether, after this answer of the driver, there may be work under way all the same: it had no
// memory, or a capture is in the way. Any other error comes of a context that is broken or gone, or
// of a stream that is none.
bool leaves_it_open(CUresult result);

// Makes an event to keep, so that there is one when the driver has no memory left. Once there is
// one, markers never need more: the newest moves back.
void reserve_marker(StreamRecord& record) REQUIRES(record.mutex);

// Raises what is done.
void note_done_at(StreamRecord& record, uint64_t count, uint64_t now);

// How many calls may be in flight, and whether so many are. What has no marker is not waited for.
// An estimate: the thread that submits looks without the mutex, and an old number does no harm.
uint32_t room_of(const StreamRecord& record) NO_THREAD_SAFETY_ANALYSIS;
bool is_full(const StreamRecord& record);

// Takes note of the markers that are done.
void retire(StreamRecord& record, uint64_t now) REQUIRES(record.mutex);

// Behind everything that has been submitted. The stream's context is current. Answers why there is
// none when there is none.
CUresult place(StreamRecord& record, uint64_t now) REQUIRES(record.mutex);

// The same, from anywhere; when there is none, asks the stream instead whether all is done. With
// captures held off, which a stream that is asked would break.
void place_or_ask(StreamRecord& record, uint64_t now) REQUIRES(record.mutex);

// A stream that is captured is destroyed: it can be neither marked nor asked any more, nor kept, as
// a capture that nobody can end would never end. The markers from before have to tell.
void leave_to_markers(StreamRecord& record, uint64_t now) REQUIRES(record.mutex);

}  // namespace nvshare::interposer::gate
