/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of transports that are built in, and what is common to all: a NIC is found by its
 * transport's name, allocated here and opened there; its failure path is nic_close.
 */
#include <errno.h>
#include <string.h>

#include "lib/transport/transport.h"
#include "lib/transport/tables.h"

const struct transport *const transports[] = {
	&transport_verbs, &transport_fabric, &transport_ipc,
	&transport_loop,  &transport_fault,  NULL,
};

const struct transport *transport_find(const char *name)
{
	for (size_t i = 0; transports[i] != NULL; i++)
		if (strcmp(transports[i]->name, name) == 0)
			return transports[i];
	return NULL;
}

/* "verbs, fabric, loop" for an error. */
static const char *names_write(char *text, size_t room)
{
	struct writer out = writer_fixed(text, room - 1);

	for (size_t i = 0; transports[i] != NULL; i++)
		write_format(&out, "%s%s", i > 0 ? ", " : "", transports[i]->name);
	text[out.count] = 0;
	return text;
}

int nic_open(struct nic **nic_out, const char *transport, const char *device, struct ws_error *err)
{
	const struct transport *found = transport_find(transport);
	struct nic *nic;
	char names[96];

	*nic_out = NULL;
	if (found == NULL)
		return ws_fail(err, -ENODEV, "no transport is named '%s'; this build has %s",
			       transport, names_write(names, sizeof(names)));
	nic = mem_alloc(found->nic_size);
	if (nic == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a NIC of transport '%s'", transport);
	nic->transport = found;
	nic->wait_fd = -1;
	int rc = found->open(nic, device, err);
	if (rc != 0) {
		nic_close(nic);
		return rc;
	}
	*nic_out = nic;
	return 0;
}

void nic_close(struct nic *nic)
{
	if (nic == NULL)
		return;
	nic->transport->close(nic);
	mem_free(nic);
}
