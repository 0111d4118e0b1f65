#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "simulation/report.hpp"

namespace troupe::simulation {

namespace {

constexpr double kPanelWidth = 400, kPanelHeight = 270, kLeft = 70, kTop = 112, kGap = 100;
constexpr double kMostDecades = 7;
constexpr const char* kInk = "#24292f";
constexpr const char* kGrid = "#e2e5e9";

struct curve {
  std::string name;
  std::string colour;
  bool dashed = false;
  std::vector<std::pair<double, double>> points = {}; // y <= 0: not drawn
};

template <class... T>
std::string format(const char* pattern, T... values) {
  char text[400];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string label(double x, double y, const char* anchor, const std::string& text, int size = 12) {
  return format("<text x='%.1f' y='%.1f' text-anchor='%s' font-size='%d' fill='%s'>", x, y, anchor, size, kInk) + escape(text) +
         "</text>\n";
}

std::string power_of_ten(int exponent) {
  static const char* const units[] = {"", "k", "M", "G", "T"};
  if (exponent < 0) return format("%g", std::pow(10, exponent));
  return format("%.0f%s", std::pow(10, exponent % 3), units[std::min(exponent / 3, 4)]);
}

class panel {
 public:
  panel(double left, std::string title, std::vector<curve> curves) : left_(left), title_(std::move(title)), curves_(std::move(curves)) {
    double least = INFINITY, most = 0;
    for (const curve& c : curves_) {
      for (const auto& [x, y] : c.points) {
        x_low_ = std::min(x_low_, std::log2(x));
        x_high_ = std::max(x_high_, std::log2(x));
        if (y > 0) least = std::min(least, y), most = std::max(most, y);
      }
    }
    if (most == 0) least = most = 1;
    y_high_ = std::ceil(std::log10(most) + 0.05);
    y_low_ = std::clamp(std::floor(std::log10(least) - 0.05), y_high_ - kMostDecades, y_high_ - 1); // what lies below is left out
    if (x_high_ - x_low_ < 1) x_high_ = x_low_ + 1;
  }

  std::string draw() const {
    std::string out = label(left_, kTop - 54, "start", title_, 13) + grid();
    for (std::size_t i = 0; i < curves_.size(); ++i) { // the legend: two rows of two above the panel
      const curve& c = curves_[i];
      const double x = left_ + (i % 2 == 0 ? 0 : kPanelWidth / 2), y = kTop - 32 + (i < 2 ? 0 : 18);
      out += stroke(format("M%.1f %.1f h 22", x, y - 4), c) + label(x + 28, y, "start", c.name) + line(c);
    }
    return out;
  }

 private:
  double x_of(double x) const { return left_ + (std::log2(x) - x_low_) / (x_high_ - x_low_) * kPanelWidth; }
  double y_of(double y) const { return kTop + kPanelHeight - (std::log10(y) - y_low_) / (y_high_ - y_low_) * kPanelHeight; }

  std::string grid() const {
    std::string out;
    const double bottom = kTop + kPanelHeight;
    for (int e = static_cast<int>(y_low_); e <= static_cast<int>(y_high_); ++e) {
      const double y = y_of(std::pow(10, e));
      out += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", left_, y, left_ + kPanelWidth, y, kGrid);
      out += label(left_ - 8, y + 4, "end", power_of_ten(e));
    }
    const int every = x_high_ - x_low_ > 12 ? 2 : 1;
    for (int e = static_cast<int>(std::ceil(x_low_)); e <= static_cast<int>(std::floor(x_high_)); e += every) {
      const double x = x_of(std::exp2(e));
      out += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", x, kTop, x, bottom, kGrid);
      out += label(x, bottom + 18, "middle", format("%.0f", std::exp2(e)));
    }
    return out + label(left_ + kPanelWidth / 2, bottom + 38, "middle", "nodes");
  }

  static std::string stroke(const std::string& path, const curve& c) {
    const char* dash = c.dashed ? " stroke-dasharray='5 4'" : "";
    return "<path d='" + path + "' fill='none' stroke='" + c.colour + "' stroke-width='2'" + dash + "/>\n";
  }

  std::string line(const curve& c) const {
    std::string path, dots;
    for (const auto& [x, y] : c.points) {
      if (y <= 0 || std::log10(y) < y_low_) continue;
      path += format("%s%.1f %.1f", path.empty() ? "M" : " L", x_of(x), y_of(y));
      if (!c.dashed) dots += format("<circle cx='%.1f' cy='%.1f' r='3' fill='%s'/>\n", x_of(x), y_of(y), c.colour.c_str());
    }
    return path.empty() ? path : stroke(path, c) + dots;
  }

  double left_;
  std::string title_;
  std::vector<curve> curves_;
  double x_low_ = 60, x_high_ = 0, y_low_ = 0, y_high_ = 1;
};

curve make_curve(const sweep& s, const char* name, const char* colour, const std::function<double(const fleet_report&)>& of) {
  curve c{name, colour, false, {}};
  for (const fleet_report& r : s.points) c.points.emplace_back(r.nodes, of(r));
  return c;
}

} // namespace

std::string svg_report(const sweep& s) {
  std::vector<curve> carried = {
      make_curve(s, "output tokens/s", "#0969da", [](const fleet_report& r) { return r.tokens_per_second(); }),
      make_curve(s, "finished requests/s", "#8250df", [](const fleet_report& r) { return r.total.finished / std::max(r.span_s, 1e-9); }),
      make_curve(s, "requests/s within the goal", "#1a7f37", [](const fleet_report& r) { return r.goodput(); }),
  };
  if (!s.points.empty()) {
    const fleet_report& first = s.points.front();
    curve ideal{"proportional to nodes", "#9aa1a9", true, {}};
    for (const fleet_report& r : s.points) ideal.points.emplace_back(r.nodes, first.tokens_per_second() * r.nodes / first.nodes);
    carried.insert(carried.begin(), std::move(ideal));
  }
  const auto quantile = [](time_histogram outcomes::*h, double q) {
    return [h, q](const fleet_report& r) { return (r.total.*h).quantile(q) / 1e6; };
  };
  const std::vector<curve> felt = {make_curve(s, "time to first token, p99", "#cf222e", quantile(&outcomes::ttft, 0.99)),
                                   make_curve(s, "time to first token, p50", "#e16f24", quantile(&outcomes::ttft, 0.5)),
                                   make_curve(s, "between tokens, p99", "#8250df", quantile(&outcomes::itl, 0.99)),
                                   make_curve(s, "between tokens, p50", "#0969da", quantile(&outcomes::itl, 0.5))};
  const double width = 2 * kPanelWidth + kGap + kLeft + 30, height = kTop + kPanelHeight + 56;
  std::string out =
      format("<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f' ", width, height, width, height);
  out += "font-family='Helvetica, Arial, sans-serif'>\n<rect width='100%' height='100%' fill='white'/>\n";
  out += label(kLeft, 28, "start", s.title, 15);
  out += panel(kLeft, "per second", std::move(carried)).draw();
  out += panel(kLeft + kPanelWidth + kGap, "milliseconds", felt).draw();
  return out + "</svg>\n";
}

} // namespace troupe::simulation
