/* Is the library there, is it the one this program was compiled for, and what can it do?
 *
 *   ./01_version
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <p2pkv.h>

int main(void)
{
    if (p2p_abi_version() != P2P_ABI_VERSION) {
        fprintf(stderr, "libp2pkv.so has ABI %" PRIu32 ", this program was compiled for ABI %d\n", p2p_abi_version(),
                P2P_ABI_VERSION);
        return EXIT_FAILURE;
    }
    uint64_t features = p2p_features();
    printf("libp2pkv %s, ABI %" PRIu32 ", compiled against header %d.%d.%d\n", p2p_version(), p2p_abi_version(),
           P2P_VERSION_MAJOR, P2P_VERSION_MINOR, P2P_VERSION_PATCH);
    printf("  tcp       %s\n", (features & P2P_FEATURE_TCP) != 0 ? "yes" : "no");
    printf("  same host %s\n", (features & P2P_FEATURE_SAME_HOST) != 0 ? "yes" : "no");
    printf("  nixl      %s\n", (features & P2P_FEATURE_NIXL) != 0 ? "yes" : "no");
    printf("  metrics   %s\n", (features & P2P_FEATURE_METRICS) != 0 ? "yes" : "no");
    return EXIT_SUCCESS;
}
