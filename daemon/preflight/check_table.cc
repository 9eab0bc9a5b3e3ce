// The table of checks, in the order in which they are shown.
#include "daemon/preflight/checks.h"

namespace tensorfold::preflight {
namespace {

constexpr Check kChecks[] = {
    // group, name, why, run
    {"system", "kernel", "Some kernels cannot register memory for RDMA; a start then fails.",
     check_kernel},
    {"system", "kernel-hold", "A routine upgrade can bring such a kernel.", check_kernel_hold},
    {"system", "cma", "Pages lent to CMA cannot be pinned: registration fails with ENOMEM.",
     check_cma},
    {"system", "page-size", "Loading was only tried with 4 KiB pages.", check_page_size},
    {"system", "clock", "Two machines' logs are compared by time.", check_clock},

    {"memory", "memory",
     "GPU and programs share one memory; a start that runs out wedges the machine.", check_memory},
    {"memory", "swap", "Swapped pages make a load slow and hide that memory is short.", check_swap},
    {"memory", "huge-pages", "Waiting for huge pages stalls long prompts.", check_huge_pages},
    {"memory", "fragmentation", "On a fragmented machine a load took 35 minutes.",
     check_fragmentation},
    {"memory", "memory-killers", "They end the service although it does what was planned.",
     check_memory_killers},

    {"gpu", "driver", "The engine needs CUDA 13.", check_driver},
    {"gpu", "cuda-backend", "Without the CUDA package the GPU is not used.", check_cuda_backend},
    {"gpu", "nccl-library", "Ranks on GPUs exchange their sums with NCCL.", check_nccl_library},
    {"gpu", "gpu-nodes", "Without its device nodes the service does not see the GPU.",
     check_gpu_nodes},
    {"gpu", "gpu-clock", "A GPU in a slow state halves the speed without an error.",
     check_gpu_clock},
    {"gpu", "gpu-processes", "Another program's memory is missing to the model.",
     check_gpu_processes},
    {"gpu", "display", "A desktop takes memory and GPU time.", check_display},

    {"service", "settings", "A wrong settings file ends the service at once.", check_settings},
    {"service", "port", "A taken port ends the service at once.", check_port},
    {"service", "other-servers", "Two model servers on one machine both collapse.",
     check_other_servers},
    {"service", "memlock", "RDMA and the cache lock memory; 8 MiB is the default.", check_memlock},
    {"service", "open-files", "Each connection and each weight file needs one.", check_open_files},
    {"service", "oom-score",
     "The kernel cannot see the driver's memory and would end something else.", check_oom_score},

    {"disk", "disk-space", "Weights are 385 GB, a prepared image 110 GB.", check_disk_space},
    {"disk", "disk-kind", "Engram rows over a network cost a quarter to a half of prefill.",
     check_disk_kind},
    {"disk", "disk-rate", "A start reads the whole image.", check_disk_rate},
    {"disk", "model-files", "A short or missing file makes wrong replies, not errors.",
     check_model_files},
    {"disk", "engram-files", "Two layers of the model look up rows in these tables.",
     check_engram_files},

    {"link", "rdma-ports", "The ranks exchange every layer's sums over RDMA.", check_rdma_ports},
    {"link", "rdma-gids", "RoCE v2 over IPv4 needs a GID by address; indexes move.",
     check_rdma_gids},
    {"link", "rdma-memory", "What cannot be registered ends the start when the ranks connect.",
     check_rdma_memory},
    {"link", "mtu", "Different MTUs break large transfers and only those.", check_mtu},
    {"link", "rdma-mtu", "Small RDMA packets cost prefill speed.", check_rdma_mtu},
    {"link", "rails", "One socket is two functions, each with half of the bandwidth.", check_rails},
    {"link", "link-apart", "Other traffic on the link delays every step.", check_link_apart},
    {"link", "nccl-environment", "A pinned or empty value breaks or hangs the start.",
     check_nccl_environment},
    {"link", "nccl-file", "A forgotten file changes how NCCL works.", check_nccl_file},
    {"link", "firewall", "Ranks connect back on changing ports.", check_firewall},

    {"peer", "peer-ssh", "The other machine is asked over ssh.", check_peer_ssh},
    {"peer", "peer-version", "Ranks of different versions do not work together.",
     check_peer_version},
    {"peer", "peer-kernel", "Different kernels behave differently under load.", check_peer_kernel},
    {"peer", "peer-driver", "Different drivers made one rank 2.4 times slower.", check_peer_driver},
    {"peer", "peer-nccl", "Two builds of NCCL hung after minutes of load.", check_peer_nccl},
    {"peer", "peer-firmware", "Firmware of the network cards changes settings of the link.",
     check_peer_firmware},
    {"peer", "peer-mtu", "Ends of one link with different MTUs lose large packets only.",
     check_peer_mtu},
    {"peer", "peer-clock", "Two machines' logs are compared by time.", check_peer_clock},
    {"peer", "peer-weights", "Ranks must compute with the same weights.", check_peer_weights},
    {"peer", "peer-transfer", "Only large packets show a mismatched MTU on the way.",
     check_peer_transfer},
    {"peer", "peer-link", "Each side must reach changing ports of the other, with much data.",
     check_peer_link},
};

}  // namespace

std::span<const Check> check_table() { return kChecks; }

}  // namespace tensorfold::preflight
