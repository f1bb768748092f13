/* Hands timers to the kernel as they were meant, beside libfaketime (0.9.10), which takes every absolute timer for one
   of the wall clock: after a jump back by ten years it sets the monotonic timer "at once" of the Pulsar client's event
   loop to ten years ahead, and nothing happens any more. On a machine whose clock is set, no monotonic timer changes. */

#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

int timerfd_settime(int timer, int flags, const struct itimerspec *new_value, struct itimerspec *old_value) {
    return (int)syscall(SYS_timerfd_settime, timer, flags, new_value, old_value);
}
