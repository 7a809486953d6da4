#include "interposer/moving/managed/state.h"

namespace nvshare::interposer::moving::managed {

constinit PerGate<Space> g_spaces{};

namespace {

// What the driver's own pages are at most: no piece shares one with the next.
constexpr uint64_t kPage = uint64_t{2} << 20;

bool is_moving(Where where) {
  return where == Where::kLeaving || where == Where::kComing;
}

List<Piece>* list_of(Space& space, Where where) {
  if (is_moving(where)) return nullptr;
  return where == Where::kHere ? &space.here : &space.away;
}

// What is on its way counts as being where it comes from.
uint64_t& sum_of(Space& space, Where where) {
  return where == Where::kHere || where == Where::kLeaving ? space.resident : space.absent;
}

void leave(Space& space, Piece& piece) {
  sum_of(space, piece.where) -= piece.bytes;
  if (List<Piece>* list = list_of(space, piece.where)) return list->remove(piece);
  piece.allocation->moving -= 1;
  space.finished.fetch_add(1);
  futex_wake(space.finished, kEveryone);
}

void enter(Space& space, Piece& piece, Where where) {
  piece.where = where;
  sum_of(space, where) += piece.bytes;
  if (is_moving(where)) piece.allocation->moving += 1;
}

// Equal pieces, in whole pages, but for the last.
uint64_t piece_bytes(uint64_t bytes) {
  const uint64_t count = (bytes + kLargestPiece - 1) / kLargestPiece;
  return ((bytes + count - 1) / count + kPage - 1) / kPage * kPage;
}

}  // namespace

Allocation* take_record(Space& space, uint64_t bytes) {
  Allocation* allocation = space.allocation_pool.take();
  if (allocation == nullptr) return nullptr;
  allocation->bytes = bytes;
  const uint64_t each = piece_bytes(bytes);
  Piece** place = &allocation->pieces;
  for (uint64_t at = 0; at < bytes; at += each) {
    Piece* piece = space.piece_pool.take();
    if (piece == nullptr) {
      give_record(space, allocation);
      return nullptr;
    }
    piece->allocation = allocation;
    piece->address = at;
    piece->bytes = bytes - at < each ? bytes - at : each;
    *place = piece;
    place = &piece->sibling;
  }
  return allocation;
}

void give_record(Space& space, Allocation* allocation) {
  for (Piece* piece = allocation->pieces; piece != nullptr;) {
    Piece* next = piece->sibling;
    space.piece_pool.give(piece);
    piece = next;
  }
  space.allocation_pool.give(allocation);
}

void add(Space& space, Allocation& allocation, CUdeviceptr address, Where where) {
  allocation.address = address;
  allocation.serial = ++space.last_serial;
  space.allocations.insert(&allocation);
  for (Piece* piece = allocation.pieces; piece != nullptr; piece = piece->sibling) {
    piece->address += address;
    enter(space, *piece, where);
    list_of(space, where)->append(*piece);
  }
}

void remove(Space& space, Allocation& allocation) {
  for (Piece* piece = allocation.pieces; piece != nullptr; piece = piece->sibling) {
    leave(space, *piece);
  }
}

void set_where(Space& space, Piece& piece, Where where) {
  leave(space, piece);
  enter(space, piece, where);
  if (List<Piece>* list = list_of(space, where)) list->append(piece);
}

void put_back(Space& space, Piece& piece) {
  const Where where = piece.where == Where::kLeaving ? Where::kHere : Where::kAway;
  leave(space, piece);
  enter(space, piece, where);
  list_of(space, where)->prepend(piece);
}

uint64_t resident_bytes(const Allocation& allocation) {
  uint64_t bytes = 0;
  for (const Piece* piece = allocation.pieces; piece != nullptr; piece = piece->sibling) {
    if (is_resident(*piece)) bytes += piece->bytes;
  }
  return bytes;
}

uint64_t managed_resident(gate::Gate& gate) {
  Space* space = g_spaces.of(gate);
  if (space == nullptr) return 0;
  const Lock lock(space->mutex);
  return space->resident;
}

uint64_t managed_absent(gate::Gate& gate) {
  Space* space = g_spaces.of(gate);
  if (space == nullptr) return 0;
  const Lock lock(space->mutex);
  return space->absent;
}

void managed_reset_after_fork() {
  g_spaces.reset_after_fork();
}

}  // namespace nvshare::interposer::moving::managed
