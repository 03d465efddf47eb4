/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clock for a program whose threads tell each other that they are alive.  It stands still while
 * one of them does: nobody is taken for dead because a busy machine ran the others alone.
 */
#ifndef EVEN_CLOCK_H
#define EVEN_CLOCK_H

/* From now on clock_ns() is this clock.  Every thread that looks at it must look again soon (within
 * EVEN_GAP_MS, or time stops), until it ends or leaves. */
#define EVEN_GAP_MS 150
void even_clock_start(void);
/* The calling thread is about to wait for another one.  It is back with its next look. */
void even_clock_leave(void);

#endif
