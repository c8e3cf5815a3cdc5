/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver library with nothing but the checkpoint calls. As the real one, it talks to a thread inside the target
 * (fake_target.py), over the socket $FAKE_CUDA_DIR/PID.sock, and hangs while that is stopped or frozen.
 *
 * A file $FAKE_CUDA_DIR/fault.CALL.before or .after makes that call misbehave, once:
 *   fail N       return N
 *   hang         until $FAKE_CUDA_DIR/release exists
 *   kill target  SIGKILL to the target
 *   kill caller  SIGKILL to the process that made the call
 *   kill client  SIGKILL to that process's client, whose pid is in $FAKE_CUDA_DIR/client
 *   kill both    to the client, then to the caller
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ERROR_NOT_INITIALIZED 3
#define ERROR_OPERATING_SYSTEM 304

static const char *directory(void) { return getenv("FAKE_CUDA_DIR"); }

static int read_number(const char *name)
{
	char path[512];
	int number = 0;
	snprintf(path, sizeof path, "%s/%s", directory(), name);
	FILE *file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%d", &number) != 1)
			number = 0;
		fclose(file);
	}
	return number;
}

static void wait_for_release(void)
{
	char path[512];
	snprintf(path, sizeof path, "%s/release", directory());
	while (access(path, F_OK) < 0)
		usleep(20000);
}

/* Returns the code to fail with, or -1. */
static int fault(const char *call, const char *when, int pid)
{
	char path[512], line[64] = "";
	snprintf(path, sizeof path, "%s/fault.%s.%s", directory(), call, when);
	FILE *file = fopen(path, "r");
	if (!file)
		return -1;
	char *got = fgets(line, sizeof line, file);
	fclose(file);
	unlink(path);
	if (!got)
		return -1;
	if (!strncmp(line, "fail ", 5))
		return atoi(line + 5);
	if (!strncmp(line, "hang", 4))
		wait_for_release();
	if (!strncmp(line, "kill target", 11)) {
		kill(pid, SIGKILL);
		usleep(50000);
	}
	if (!strncmp(line, "kill client", 11) || !strncmp(line, "kill both", 9))
		kill(read_number("client"), SIGKILL);
	if (!strncmp(line, "kill caller", 11) || !strncmp(line, "kill both", 9))
		kill(getpid(), SIGKILL);
	return -1;
}

/* One request to the thread in the target; *value is the second number of the answer. */
static int ask(int pid, const char *request, int *value)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char answer[64] = "";
	int code = ERROR_OPERATING_SYSTEM, ignored;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s/%d.sock", directory(), pid);
	if (fd < 0)
		return code;
	if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		code = errno == ENOENT ? ERROR_NOT_INITIALIZED : ERROR_OPERATING_SYSTEM;
	} else if (write(fd, request, strlen(request)) > 0 && read(fd, answer, sizeof answer - 1) > 0) {
		if (sscanf(answer, "%d %d", &code, value ? value : &ignored) < 1)
			code = ERROR_OPERATING_SYSTEM;
	}
	close(fd);
	return code;
}

static int call(const char *name, int pid, const char *request, int *value)
{
	int code = fault(name, "before", pid);
	if (code >= 0)
		return code;
	code = ask(pid, request, value);
	int after = fault(name, "after", pid);
	return after >= 0 ? after : code;
}

int cuInit(unsigned flags) { (void)flags; return read_number("cuInit"); }

int cuDriverGetVersion(int *version)
{
	int number = read_number("version");
	*version = number ? number : 13000;
	return 0;
}

#ifndef OLD_DRIVER
int cuCheckpointProcessGetState(int pid, int *state) { return call("state", pid, "state\n", state); }

int cuCheckpointProcessLock(int pid, const uint32_t *arguments)
{
	char request[64];
	snprintf(request, sizeof request, "lock %u\n", arguments[0]);
	return call("lock", pid, request, NULL);
}

int cuCheckpointProcessCheckpoint(int pid, const void *arguments)
{
	(void)arguments;
	return call("checkpoint", pid, "checkpoint\n", NULL);
}

int cuCheckpointProcessRestore(int pid, const unsigned char *arguments)
{
	char request[4096] = "restore";
	size_t used = strlen(request);
	unsigned char *pairs;
	uint32_t count;
	memcpy(&pairs, arguments, sizeof pairs);
	memcpy(&count, arguments + 8, sizeof count);
	for (uint32_t i = 0; pairs && i < 2 * count && used < sizeof request - 64; i++) {
		request[used++] = ' ';
		for (int byte = 0; byte < 16; byte++)
			used += (size_t)sprintf(request + used, "%02x", pairs[16 * i + byte]);
	}
	strcpy(request + used, "\n");
	return call("restore", pid, request, NULL);
}

int cuCheckpointProcessUnlock(int pid, const void *arguments)
{
	(void)arguments;
	return call("unlock", pid, "unlock\n", NULL);
}
#endif
