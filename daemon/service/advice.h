// What to do about a start that failed: the end of its one line in the journal. Nobody who reads
// that line should have to look further to know the next step.
#pragma once

namespace tensorfold::service {

inline constexpr char kAdvicePort[] = "; stop it, or give http.listen another port";
inline constexpr char kAdviceLowPort[] = "; ports below 1024 are for root: take a higher one";
inline constexpr char kAdviceInstance[] =
    "; stop it, or run this one as tensorfoldd@NAME with settings of its own";
inline constexpr char kAdviceSettings[] =
    "; correct the settings and start it again ('tfctl config check' reads them without a start)";
inline constexpr char kAdviceModel[] = "; 'tfctl model verify' names files that are damaged";
inline constexpr char kAdviceEngine[] =
    "; 'tfctl doctor' looks at the machine; engine.device = \"cpu\" needs no GPU";

}  // namespace tensorfold::service
