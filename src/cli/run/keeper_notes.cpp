#include "cli/run/keeper_notes.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace nvshare::cli {

Place make_place(const std::string& name, const std::vector<Uuid>& gpus) {
  Place place;
  wire::put_text(place.name, sizeof place.name, name.c_str());
  place.gpu_count = static_cast<std::uint32_t>(std::min(gpus.size(), place.gpus.size()));
  std::copy_n(gpus.begin(), place.gpu_count, place.gpus.begin());
  return place;
}

std::string name_in(const Place& place) {
  return {place.name, wire::text_length(place.name, sizeof place.name)};
}

std::vector<Uuid> gpus_in(const Place& place) {
  return {place.gpus.begin(), place.gpus.begin() + place.gpu_count};
}

NotePair make_note_pair() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return {};
  return {UniqueFd(pair[0]), UniqueFd(pair[1])};
}

void send_note(int socket, const Note& note) {
  ssize_t sent;
  do {
    sent = ::send(socket, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
}

Heard receive_note(int socket, Note& note, bool wait) {
  ssize_t got;
  do {
    got = ::recv(socket, &note, sizeof note, wait ? 0 : MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof note) return Heard::Note;
  return got < 0 && errno == EAGAIN ? Heard::Nothing : Heard::Closed;
}

}  // namespace nvshare::cli
