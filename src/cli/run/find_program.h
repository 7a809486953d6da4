#pragma once

#include <string>

namespace nvshare::cli {

// As shells answer when a program cannot be started.
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// The exit code for an errno of exec.
int exit_code_of_exec(int error);

// What to tell a person whose program was not started: what is wrong with it, for an errno of exec
// or find_program(), and what to do.
std::string why_not_started(const std::string& name, int error);

// 0 when execvp() would find something to start under this name, else the errno it would answer.
int find_program(const std::string& name);

}  // namespace nvshare::cli
