/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clock for programs that hold real deadlines: it stands still while the process does, and, where
 * that is asked for, while one of its threads does.  So nobody is late, or taken for dead, because
 * a busy machine ran the others alone.
 */
#ifndef EVEN_CLOCK_H
#define EVEN_CLOCK_H

#include <stdbool.h>

/* From now on clock_ns() is this clock.  each: every thread that looks at it must look again soon
 * (within EVEN_GAP_MS, or time stops), until it ends or leaves; else some thread must. */
#define EVEN_GAP_MS 150
void even_clock_start(bool each);
/* The calling thread is about to wait for another one.  It is back with its next look. */
void even_clock_leave(void);

#endif
