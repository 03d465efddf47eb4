/* SPDX-License-Identifier: Apache-2.0 */
/* NICs: what this host offers to a transport, what is wrong with one, what an update would take. */
#include <errno.h>
#include <string.h>

#include "cli/doctor.h"
#include "lib/transport/topology.h"

#define TEXT_BYTES 700

/* "verbs mlx5_0/1: up, 10.0.1.0/24, 400 Gb/s, MTU 4096, GID 3 (..), mlx5_core at 0000:18:00.0,
 * NUMA 0, for GPU 0-1": as far as it is known. */
static void nic_text(const struct nic_info *info, char *out, size_t room)
{
	struct writer text = writer_fixed(out, room - 1);
	char gpus[64];

	write_format(&text, "%s %s: %s", info->transport, info->device, info->state);
	if (info->subnet[0] != '\0')
		write_format(&text, ", %s", info->subnet);
	if (info->mbps > 0)
		write_format(&text, ", %.3g Gb/s", (double)info->mbps / 1e3);
	if (info->mtu > 0)
		write_format(&text, ", MTU %u", info->mtu);
	if (info->gid[0] != '\0')
		write_format(&text, ", %s", info->gid);
	if (info->driver[0] != '\0')
		write_format(&text, ", %s", info->driver);
	if (info->pci[0] != '\0')
		write_format(&text, " at %s", info->pci);
	if (info->numa >= 0)
		write_format(&text, ", NUMA %d", info->numa);
	if (info->gpus != 0)
		write_format(&text, ", for GPU %s", format_ranks(info->gpus, gpus, sizeof(gpus)));
	out[text.count] = '\0';
}

void doctor_nic(struct doctor *doctor, const struct nic_info *info)
{
	bool verbs = strcmp(info->transport, "verbs") == 0;
	char text[TEXT_BYTES];

	nic_text(info, text, sizeof(text));
	/* A NIC of verbs was bought to be used; that it is another rank's, or not verbs', is no
	 * fault. */
	bool lame = verbs && (strcmp(info->state, "up") != 0 || info->subnet[0] == '\0');
	if (info->skipped[0] != '\0' && lame)
		doctor_say(doctor, HEALTH_WARNING, "nic",
			   "an update doesn't use it unless it is named",
			   "bring its port up (`rdma link`, `ip link`) and give its interface an "
			   "address, or leave it out on purpose",
			   "%s: skipped: %s", text, info->skipped);
	else if (info->skipped[0] != '\0')
		doctor_say(doctor, HEALTH_OK, "nic", "", "", "%s: skipped: %s", text,
			   info->skipped);
	else if (verbs && info->mtu > 0 && info->mtu < 4096)
		doctor_say(
			doctor, HEALTH_NOTE, "nic",
			"each packet has its price: 4096 bytes are the most a verbs port can have",
			"jumbo frames (`ip link set DEV mtu 9000`) at both ends and on every "
			"switch between",
			"%s", text);
	else
		doctor_say(doctor, HEALTH_OK, "nic", "", "", "%s", text);
}

/* What a transport is offered here, with what is known of each; whether that is anything, or can't
 * be known: without libfabric none of its providers has an answer. */
static bool list(struct doctor *doctor, const struct topology *topology, int gpu,
		 const char *transport, const char *provider)
{
	struct nic_info *infos = NULL;
	struct ws_error err = {0};
	uint32_t count = 0;

	if (transport_find(transport) == NULL)
		return false;
	int rc = nics_list(&doctor->arena, transport, provider, &infos, &count, &err);
	if (rc == 0) {
		nics_place(topology, infos, count);
		rc = nics_choose(topology, gpu, infos, count, &err);
	}
	if (rc != 0)
		doctor_say(doctor, HEALTH_WARNING, "nic", "its NICs can't be looked at",
			   "see whether its library is installed whole", "%s: %s", transport,
			   err.text);
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		doctor_nic(doctor, &infos[i]);
	return count > 0 || rc == -ENOTSUP;
}

static void list_all(struct doctor *doctor, const struct devices_wanted *wanted)
{
	bool any = wanted->transport == NULL || strcmp(wanted->transport, "auto") == 0;
	struct topology topology;
	struct ws_error err = {0};
	int gpu = -1;

	int rc = topology_load(&topology, NULL, &err);
	if (rc == 0)
		rc = topology_gpu_find(&topology, wanted->gpu, &gpu, &err);
	if (rc != 0)
		doctor_say(doctor, HEALTH_WARNING, "nic",
			   "which NICs are near a GPU or a core follows from it",
			   "see what `lstopo` says", "%s", err.text);
	if (any || strcmp(wanted->transport, "verbs") == 0)
		list(doctor, &topology, gpu, "verbs", NULL);
	if (any || strcmp(wanted->transport, "fabric") == 0) {
		bool efa =
			wanted->provider == NULL && list(doctor, &topology, gpu, "fabric", "efa");
		if (!efa)
			list(doctor, &topology, gpu, "fabric", wanted->provider);
	}
	topology_release(&topology);
}

void doctor_nics(struct doctor *doctor, const struct devices_wanted *wanted,
		 struct devices *devices)
{
	struct ws_error err = {0};

	list_all(doctor, wanted);
	if (devices_find(devices, wanted, &err) == 0) {
		doctor_say(doctor, HEALTH_OK, "transport", "", "", "an update would use %s",
			   devices->choice);
		return;
	}
	devices->count = 0;
	doctor_say(doctor, HEALTH_PROBLEM, "transport",
		   "without a NIC that opens this rank can't take part in an update",
		   "see the NICs' findings, or name one: --nics ADDRESS", "%s", err.text);
}
