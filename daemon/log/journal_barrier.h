// Waits until the journal has read what this process sent it.
//
// The journal looks up which unit a sender belongs to when it reads the message, by the sender's
// process. A service that says why it fails and ends at once may be gone by then: its last words
// are kept, but 'journalctl -u' does not find them. So a process that ends waits for the journal.
// Owner: any thread; nothing is kept.
#pragma once

#include <cstdint>
#include <string>

namespace tensorfold::log {

inline constexpr const char* kJournalSocket = "/run/systemd/journal/socket";
inline constexpr int64_t kJournalWaitMs = 500;  // of a journal that does not read

// Datagrams to one socket are read in order: an empty one, which the journal ignores, is sent after
// all others, and its own memory is given back when it was read. False: not within `limit_ms`, or
// there is no such socket.
bool wait_for_journal(const std::string& socket_path = kJournalSocket,
                      int64_t limit_ms = kJournalWaitMs);

}  // namespace tensorfold::log
